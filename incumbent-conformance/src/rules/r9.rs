//! R9: `observe` on one handle never goes back to a lower token; a regression of the store is reported as an error.

use std::cell::Cell;

use incumbent_core::ErrorKind;

use super::{Rule, case};
use crate::clock::now;
use crate::stage::{Outcome, Stage, ensure};

pub(super) const RULE: Rule = Rule {
    id: "R9",
    cases: &[
        case!(r9_observe_shows_who_leads),
        case!(r9_observe_never_goes_back_while_terms_pass),
        case!(r9_a_store_that_went_back_is_reported, alone),
    ],
};

/// Its id, nonce, address and token; and nobody before and after.
async fn r9_observe_shows_who_leads(stage: &Stage) -> Outcome {
    let (handle, other, election) = (stage.open().await?, stage.open().await?, stage.election());
    ensure!(
        stage.observe(&other, &election).await?.leader.is_none(),
        "somebody leads an election that nobody has used"
    );
    let claim = stage.claim(&election, "a");
    let grant = stage.win(&handle, &claim).await?;
    let waiting = stage.claim(&election, "b");
    stage.must_not_win(&other, &waiting).await?;
    for handle in [&handle, &other] {
        let seen = stage.observe(handle, &election).await?;
        let Some(leader) = &seen.leader else {
            ensure!(false, "nobody is shown after a grant");
            return Ok(());
        };
        let who = &leader.contender;
        ensure!(
            who.id == claim.id.as_str() && who.nonce == Some(claim.nonce),
            "another one is shown: {leader:?}"
        );
        ensure!(who.address == claim.address, "another address is shown: {leader:?}");
        ensure!(leader.token == grant.token, "granted was {:?}, shown is {leader:?}", grant.token);
        if stage.guarantees.lists_candidates {
            let listed = seen.candidates.unwrap_or_default();
            let has = |nonce| listed.iter().any(|candidate| candidate.nonce == Some(nonce));
            ensure!(has(claim.nonce) && has(waiting.nonce), "not all candidates are listed: {listed:?}");
        }
    }
    stage.release(&other, &waiting, None).await?;
    stage.release(&handle, &claim, Some(&grant)).await?;
    ensure!(stage.observe(&other, &election).await?.leader.is_none(), "somebody is shown after the release");
    Ok(())
}

/// Two observers look as fast as they can while candidates take turns.
async fn r9_observe_never_goes_back_while_terms_pass(stage: &Stage) -> Outcome {
    stage.needs_tokens()?;
    let election = stage.election();
    let handles = stage.open_many(4).await?;
    let done = Cell::new(false);
    let terms = async {
        let end = now() + stage.ttl() * 2;
        let mut term = 0;
        while now() < end || term < 4 {
            let (handle, claim) = (&handles[term % 2], stage.claim(&election, &format!("c{term}")));
            let grant = stage.win(handle, &claim).await?;
            tokio::time::sleep(stage.ttl() / 50).await;
            stage.release(handle, &claim, Some(&grant)).await?;
            term += 1;
        }
        done.set(true);
        Outcome::Ok(())
    };
    let watch = async |number: usize| {
        let mut looks = 0;
        while !done.get() {
            stage.observe(&handles[number], &election).await?;
            looks += 1;
            tokio::time::sleep(stage.ttl() / 300).await;
        }
        Outcome::Ok(looks)
    };
    let ((), one, two) = tokio::try_join!(terms, watch(2), watch(3))?;
    // The judge compares what was shown.
    ensure!(one > 4 && two > 4, "only {one} and {two} looks: the case proves nothing");
    Ok(())
}

/// An operator has put an old copy of its data back: nothing older than what this handle has shown is shown as if nothing had
/// happened.
async fn r9_a_store_that_went_back_is_reported(stage: &Stage) -> Outcome {
    stage.needs_tokens()?;
    let (handle, election) = (stage.open().await?, stage.election());
    let first = stage.claim(&election, "a");
    let grant = stage.win(&handle, &first).await?;
    stage.removal(None, stage.harness.back_up(false)).await?;
    stage.release(&handle, &first, Some(&grant)).await?;
    // So much that the store's own housekeeping after its return does not soon make up for it.
    for _ in 0..10 {
        let between = stage.claim(&election, "between");
        let grant = stage.win(&handle, &between).await?;
        stage.release(&handle, &between, Some(&grant)).await?;
    }
    let later = stage.win(&handle, &stage.claim(&election, "b")).await?;
    let shown = stage.observe(&handle, &election).await?.leader.and_then(|leader| leader.token);
    ensure!(shown == later.token, "granted was {:?}, shown is {shown:?}", later.token);
    stage.removal(None, stage.harness.back_up(true)).await?;
    let end = now() + stage.takeover();
    loop {
        match handle.observe(&election).await {
            Err(error) if error.kind() == ErrorKind::StoreRegressed => return Ok(()),
            // The store may still be starting.
            Err(error) => ensure!(now() < end, "the store does not come back: {error:?}"),
            Ok(seen) => {
                let token = seen.leader.and_then(|leader| leader.token);
                ensure!(
                    token.is_none_or(|token| Some(token) >= later.token),
                    "token {token:?} came after {shown:?}"
                );
                ensure!(now() < end, "the store went back and nothing was said");
            }
        }
        tokio::time::sleep(stage.ttl() / 20).await;
    }
}
