//! R1: two grants of one election are never both unexpired in the store.

use std::cell::Cell;

use futures_util::future::{join_all, try_join_all};
use incumbent_core::{Acquired, Result};

use super::{Rule, case};
use crate::clock::now;
use crate::stage::{Handle, Outcome, Stage, ensure, random};

pub(super) const RULE: Rule = Rule {
    id: "R1",
    cases: &[
        case!(r1_of_many_that_try_at_once_one_wins),
        case!(r1_many_that_come_and_go_never_hold_it_together),
        case!(r1_an_unrenewed_grant_excludes_others_for_its_whole_ttl),
        case!(r1_a_renewal_excludes_others_for_another_ttl),
    ],
};

/// On an election that nobody has used yet, where the store has nothing to compare with.
async fn r1_of_many_that_try_at_once_one_wins(stage: &Stage) -> Outcome {
    let handles = stage.open_many(6).await?;
    for _ in 0..5 {
        let election = stage.election();
        let claims: Vec<_> = (0..6).map(|i| stage.claim(&election, &format!("c{i}"))).collect();
        let until = now() + stage.ttl() / 2;
        let mut winners = 0;
        while now() < until {
            let tries = handles.iter().zip(&claims).map(|(handle, claim)| handle.try_acquire(claim));
            let answers = join_all(tries).await;
            let granted = answers.iter().filter(|answer| matches!(answer, Ok(Acquired::Granted(_)))).count();
            // The judge sees to it that the winners of later rounds are the winner of the first.
            winners = winners.max(granted);
            let broken =
                |answer: &Result<Acquired>| answer.as_ref().is_err_and(|error| !error.is_retryable());
            if let Some(Err(error)) = answers.into_iter().find(broken) {
                return Err(error.into());
            }
            tokio::time::sleep(stage.ttl() / 20).await;
        }
        ensure!(winners <= 1, "{winners} of 6 candidates won in one round");
    }
    Ok(())
}

/// Candidates win, renew, release, or are silent until their lease has run out, all at random.
async fn r1_many_that_come_and_go_never_hold_it_together(stage: &Stage) -> Outcome {
    const TERMS: u32 = 10;
    let election = stage.election();
    let end = now() + stage.takeover() * TERMS;
    let terms = Cell::new(0);
    let handles = stage.open_many(5).await?;
    let candidates = handles.iter().map(async |handle: &Handle| {
        let mut claim = stage.claim(&election, "c");
        while terms.get() < TERMS {
            let mut pause = stage.ttl() / 40;
            if let Acquired::Granted(grant) = stage.answer(async || handle.try_acquire(&claim).await).await? {
                terms.set(terms.get() + 1);
                let dice = random();
                if dice.is_multiple_of(4) {
                    stage.keep(handle, &claim, &grant, now() + stage.ttl()).await?;
                }
                if dice.is_multiple_of(3) {
                    pause = stage.ttl() * 3 / 2;
                } else {
                    stage.release(handle, &claim, Some(&grant)).await?;
                    pause = stage.ttl() / 10;
                }
                claim = stage.claim(&election, "c");
            }
            ensure!(now() < end, "only {} terms in {:?}", terms.get(), stage.takeover() * TERMS);
            tokio::time::sleep(pause).await;
        }
        stage.release(handle, &claim, None).await?;
        Outcome::Ok(())
    });
    try_join_all(candidates).await?;
    Ok(())
}

/// Challengers who do not wait as they are told get nothing by it.
async fn r1_an_unrenewed_grant_excludes_others_for_its_whole_ttl(stage: &Stage) -> Outcome {
    let election = stage.election();
    let handles = stage.open_many(3).await?;
    let first = stage.claim(&election, "first");
    let grant = stage.win(&handles[0], &first).await?;
    let challengers = [stage.claim(&election, "second"), stage.claim(&election, "third")];
    let tries = handles[1..].iter().zip(&challengers).map(async |(handle, claim)| {
        stage.win(handle, claim).await?;
        Outcome::Ok(now())
    });
    // Whoever wins first stays silent, and then the other wins: twice the ttl is judged.
    for won_at in try_join_all(tries).await? {
        let until = stage.certain_until(grant.sent_at);
        ensure!(won_at >= until, "a challenger won {:?} before the lease had run out", until.since(won_at));
    }
    Ok(())
}

/// The lease counts from its last renewal, not from the grant.
async fn r1_a_renewal_excludes_others_for_another_ttl(stage: &Stage) -> Outcome {
    let election = stage.election();
    let handles = stage.open_many(2).await?;
    let (leader, challenger) = (stage.claim(&election, "leader"), stage.claim(&election, "challenger"));
    let grant = stage.win(&handles[0], &leader).await?;
    let lead = async {
        let sent_at = stage.keep(&handles[0], &leader, &grant, now() + stage.ttl() * 2).await?;
        Outcome::Ok(stage.certain_until(sent_at))
    };
    let challenge = async {
        // Errors are no answer; it tries as long as the leader leads, and one takeover longer.
        let end = now() + stage.ttl() * 2 + stage.takeover();
        loop {
            if let Ok(Acquired::Granted(_)) = handles[1].try_acquire(&challenger).await {
                return Outcome::Ok(now());
            }
            ensure!(now() < end, "the challenger never won although the leader is silent");
            tokio::time::sleep(stage.ttl() / 50).await;
        }
    };
    let (until, won_at) = tokio::try_join!(lead, challenge)?;
    ensure!(won_at >= until, "the challenger won {:?} before the lease had run out", until.since(won_at));
    Ok(())
}
