//! R4: a timeout may mean "done": `try_acquire` of the same campaign adopts a grant of that campaign whose answer was lost, and
//! counts its deadline from a proof of its own. A grant of an ended campaign is never adopted: it is superseded with a new
//! token, or removed.

use incumbent_core::{Acquired, ElectionName, FencingToken};

use super::{Rule, case};
use crate::clock::{now, sleep_until};
use crate::stage::{Handle, Outcome, Stage, Stop, ensure};

pub(super) const RULE: Rule = Rule {
    id: "R4",
    cases: &[
        case!(r4_adopts_a_grant_whose_answer_was_lost),
        case!(r4_an_adopted_grant_excludes_others_for_a_ttl_from_its_own_proof),
        case!(r4_asking_again_is_answered_again),
        case!(r4_a_new_campaign_never_adopts_the_grant_of_an_old_one),
        case!(r4_nor_does_it_on_the_same_connection),
    ],
};

async fn shown(stage: &Stage, handle: &Handle, election: &ElectionName) -> Outcome<Option<FencingToken>> {
    let leader = stage.observe(handle, election).await?.leader;
    let leader = leader.ok_or_else(|| Stop::Failed("the store shows no leader after a grant".to_owned()))?;
    Ok(leader.token)
}

/// One answer is lost, then another.
async fn r4_adopts_a_grant_whose_answer_was_lost(stage: &Stage) -> Outcome {
    let (handle, election) = (stage.open().await?, stage.election());
    let claim = stage.claim(&election, "a");
    stage.win(&handle, &claim).await?;
    let token = shown(stage, &handle, &election).await?;
    for _ in 0..2 {
        tokio::time::sleep(stage.ttl() / 4).await;
        let Acquired::Granted(adopted) = stage.answer(async || handle.try_acquire(&claim).await).await?
        else {
            return Err(Stop::Failed("the campaign holds the election and is not told so".to_owned()));
        };
        ensure!(adopted.token == token, "token {token:?} was adopted as {:?}", adopted.token);
        stage.must_extend(&handle, &claim, &adopted).await?;
    }
    Ok(())
}

/// The adoption comes late in the lost grant's life: what it says must be true.
async fn r4_an_adopted_grant_excludes_others_for_a_ttl_from_its_own_proof(stage: &Stage) -> Outcome {
    let (handle, other, election) = (stage.open().await?, stage.open().await?, stage.election());
    let (claim, rival) = (stage.claim(&election, "a"), stage.claim(&election, "b"));
    let lost = stage.win(&handle, &claim).await?;
    // The rival knows of the grant from its beginning.
    stage.must_not_win(&other, &rival).await?;
    sleep_until(lost.sent_at + stage.ttl() * 2 / 3).await;
    // A busy machine may have slept past the end: then it is adopted, or it is not, and either is judged.
    let Acquired::Granted(adopted) = stage.answer(async || handle.try_acquire(&claim).await).await? else {
        return Ok(());
    };
    stage.win(&other, &rival).await?;
    let (won_at, until) = (now(), stage.certain_until(adopted.sent_at));
    ensure!(won_at >= until, "the rival won {:?} before the adopted grant had run out", until.since(won_at));
    Ok(())
}

/// A campaign that already leads is no challenger of itself.
async fn r4_asking_again_is_answered_again(stage: &Stage) -> Outcome {
    let (handle, election) = (stage.open().await?, stage.election());
    let claim = stage.claim(&election, "a");
    let grant = stage.win(&handle, &claim).await?;
    let (one, two) = tokio::join!(handle.try_acquire(&claim), handle.try_acquire(&claim));
    let mut answered = 0;
    for answer in [one, two] {
        match answer {
            Ok(Acquired::Granted(again)) => {
                answered += 1;
                ensure!(again.token == grant.token, "asked again, {grant:?} became {again:?}");
            }
            // Two calls at once may get into each other's way.
            Ok(Acquired::Held { .. }) => {}
            Err(error) => ensure!(error.is_retryable(), "asked again: {error:?}"),
        }
    }
    ensure!(answered > 0, "of two calls at once neither was granted");
    stage.must_extend(&handle, &claim, &grant).await?;
    Ok(())
}

/// A process has died and starts again under its name.
async fn r4_a_new_campaign_never_adopts_the_grant_of_an_old_one(stage: &Stage) -> Outcome {
    supersede(stage, false).await
}

/// The candidate has given up in the meantime, without being able to say so to the store.
async fn r4_nor_does_it_on_the_same_connection(stage: &Stage) -> Outcome {
    supersede(stage, true).await
}

async fn supersede(stage: &Stage, same_connection: bool) -> Outcome {
    let (handle, election) = (stage.open().await?, stage.election());
    let old = stage.claim(&election, "a");
    let lost = stage.win(&handle, &old).await?;
    let again = if same_connection { handle.clone() } else { stage.open().await? };
    let new = stage.claim(&election, "a");
    let grant = stage.win(&again, &new).await?;
    if stage.guarantees.has_tokens() {
        ensure!(grant.token > lost.token, "{:?} was adopted from an ended campaign: {grant:?}", lost.token);
    } else {
        let until = stage.certain_until(lost.sent_at);
        ensure!(
            same_connection || now() >= until,
            "another process was superseded before its lease had run out"
        );
    }
    stage.must_be_lost(&handle, &old, &lost).await?;
    stage.must_extend(&again, &new, &grant).await?;
    Ok(())
}
