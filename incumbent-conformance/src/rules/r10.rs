//! R10: watches may lose, double and delay; safety and the liveness bound hold without them; after a gap the state is listed
//! again.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::try_join_all;
use incumbent_core::guarantees::Handover;

use super::{Rule, case};
use crate::clock::now;
use crate::stage::{Outcome, Stage, Stop, ensure};

pub(super) const RULE: Rule = Rule {
    id: "R10",
    cases: &[
        case!(r10_a_silent_leader_is_followed_without_any_hint),
        case!(r10_a_release_is_followed_without_any_hint),
        case!(r10_all_who_wait_come_first_without_any_hint),
        case!(r10_a_release_is_hinted),
        case!(r10_a_watch_that_was_dropped_can_be_taken_up_again),
    ],
};

/// Within the declared bound, by trying only when the backend itself says so.
async fn r10_a_silent_leader_is_followed_without_any_hint(stage: &Stage) -> Outcome {
    let (handle, other, election) = (stage.open().await?, stage.open().await?, stage.election());
    let (claim, next) = (stage.claim(&election, "a"), stage.claim(&election, "b"));
    let grant = stage.win(&handle, &claim).await?;
    stage.must_not_win(&other, &next).await?;
    stage.keep(&handle, &claim, &grant, now() + stage.ttl()).await?;
    stage.win_unaided(&other, &next).await?;
    Ok(())
}

/// The same after a polite leader: a lost hint costs time, not the election.
async fn r10_a_release_is_followed_without_any_hint(stage: &Stage) -> Outcome {
    let (handle, other, election) = (stage.open().await?, stage.open().await?, stage.election());
    let (claim, next) = (stage.claim(&election, "a"), stage.claim(&election, "b"));
    let grant = stage.win(&handle, &claim).await?;
    stage.must_not_win(&other, &next).await?;
    stage.release(&handle, &claim, Some(&grant)).await?;
    stage.win_unaided(&other, &next).await?;
    Ok(())
}

/// Nobody is forgotten in the queue.
async fn r10_all_who_wait_come_first_without_any_hint(stage: &Stage) -> Outcome {
    let election = stage.election();
    let handles = stage.open_many(4).await?;
    let claims: Vec<_> = (0..4).map(|i| stage.claim(&election, &format!("c{i}"))).collect();
    try_join_all(handles.iter().zip(&claims).map(async |(handle, claim)| {
        // Each in its turn waits for up to three others.
        let begin = now();
        let grant = loop {
            match stage.win_unaided(handle, claim).await {
                Ok(grant) => break grant,
                Err(stop) if now() > begin + stage.takeover() * 4 => return Err(stop),
                Err(_) => {}
            }
        };
        stage.keep(handle, claim, &grant, now() + stage.ttl() / 2).await?;
        stage.release(handle, claim, Some(&grant)).await?;
        Outcome::Ok(())
    }))
    .await?;
    Ok(())
}

/// One hint of three may be lost.
async fn r10_a_release_is_hinted(stage: &Stage) -> Outcome {
    if stage.guarantees.handover == Handover::Polled {
        return Err(Stop::NotApplicable("the backend declares that standbys poll".to_owned()));
    }
    let (handle, other) = (stage.open().await?, stage.open().await?);
    for _ in 0..3 {
        let election = stage.election();
        let (claim, next) = (stage.claim(&election, "a"), stage.claim(&election, "b"));
        let grant = stage.win(&handle, &claim).await?;
        stage.must_not_win(&other, &next).await?;
        let Some(mut hints) = other.watch(&election, Some(&next)) else {
            return Err(Stop::Failed("hand-over is declared as pushed, and there is no watch".to_owned()));
        };
        // A subscription may need a moment to reach the store.
        let _ = tokio::time::timeout(stage.ttl() / 4, hints.next()).await;
        stage.release(&handle, &claim, Some(&grant)).await?;
        if let Ok(Some(Ok(()))) = tokio::time::timeout(stage.takeover(), hints.next()).await {
            return Ok(());
        }
    }
    Err(Stop::Failed("hand-over is declared as pushed, and no release gave a hint".to_owned()))
}

/// Whatever happened in the gap is seen by a look, and what happens afterwards gives hints again.
async fn r10_a_watch_that_was_dropped_can_be_taken_up_again(stage: &Stage) -> Outcome {
    let (handle, other, election) = (stage.open().await?, stage.open().await?, stage.election());
    let watch = |time: Duration| {
        let (other, election) = (&other, &election);
        async move {
            let Some(mut hints) = other.watch(election, None) else { return Ok(false) };
            match tokio::time::timeout(time, hints.next()).await {
                Ok(Some(hint)) => hint.map(|()| true).map_err(Stop::from),
                Ok(None) | Err(_) => Ok(false),
            }
        }
    };
    for i in 0..5 {
        watch(stage.ttl() / 20).await?;
        let claim = stage.claim(&election, &format!("c{i}"));
        let grant = stage.win(&handle, &claim).await?;
        let seen = stage.observe(&other, &election).await?.leader.map(|leader| leader.contender.id);
        ensure!(
            seen.as_deref() == Some(claim.id.as_str()),
            "after the gap {seen:?} is seen, not {}",
            claim.id
        );
        stage.release(&handle, &claim, Some(&grant)).await?;
    }
    if stage.guarantees.handover == Handover::Polled {
        return Ok(());
    }
    let term = async {
        for i in 0..3 {
            tokio::time::sleep(stage.ttl() / 4).await;
            let claim = stage.claim(&election, &format!("d{i}"));
            let grant = stage.win(&handle, &claim).await?;
            stage.release(&handle, &claim, Some(&grant)).await?;
        }
        Outcome::Ok(())
    };
    let (hinted, ended) = tokio::join!(watch(stage.takeover()), term);
    ended?;
    ensure!(hinted?, "a watch that was taken up again gave no hint");
    Ok(())
}
