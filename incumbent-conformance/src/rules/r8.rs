//! R8: dropping any future at any await leaves at most one grant, which ends within the ttl; nothing keeps contending in the
//! background.

use std::time::Duration;

use futures_util::future::{LocalBoxFuture, try_join_all};
use incumbent_core::{Acquired, Claim, Note, Swapped};

use super::{Rule, case};
use crate::abandon;
use crate::clock::now;
use crate::stage::{Handle, Outcome, Stage, ensure};

pub(super) const RULE: Rule = Rule {
    id: "R8",
    cases: &[
        case!(r8_a_dropped_acquire_leaves_nothing_after_the_ttl),
        case!(r8_a_dropped_acquire_of_a_waiting_candidate_leaves_nothing),
        case!(r8_after_a_dropped_acquire_the_campaign_can_go_on),
        case!(r8_a_dropped_renewal_leaves_the_grant_whole),
        case!(r8_a_dropped_release_can_be_repeated_or_left),
        case!(r8_a_dropped_release_of_a_waiting_candidate_gives_up_its_place),
        case!(r8_a_dropped_write_of_a_note_is_done_or_not),
        case!(r8_an_abandoned_grant_ends_although_its_connection_lives),
    ],
};

/// A future is dropped at its first wait, its second, and so on until it has no more; then after ever longer times.
const WAITS_MAX: usize = 40;
const MOMENTS: u32 = 10;

/// Calls `call` again and again, dropping it at every wait and at several moments.
async fn drop_everywhere<'a, T>(
    mut call: impl FnMut() -> LocalBoxFuture<'a, Outcome<Dropped<T>>>,
) -> Outcome<Vec<T>> {
    let mut all = Vec::new();
    for polls in 1..=WAITS_MAX {
        let Dropped { future, with } = call().await?;
        let ended = abandon::after_polls(polls, future).await.is_some();
        all.push(with);
        if ended {
            break;
        }
    }
    for moment in 0..MOMENTS {
        let Dropped { future, with } = call().await?;
        abandon::after(Duration::from_micros(100) * moment * moment, future).await;
        all.push(with);
    }
    Ok(all)
}

/// A call that is to be dropped, and what is needed to look at its traces.
struct Dropped<T> {
    future: LocalBoxFuture<'static, ()>,
    with: T,
}

fn acquiring(handle: &Handle, claim: &Claim) -> LocalBoxFuture<'static, ()> {
    let (handle, claim) = (handle.clone(), claim.clone());
    Box::pin(async move {
        let _ = handle.try_acquire(&claim).await;
    })
}

/// The campaign is never heard of again, while its connection goes on leading another election.
async fn r8_a_dropped_acquire_leaves_nothing_after_the_ttl(stage: &Stage) -> Outcome {
    let (handle, other) = (stage.open().await?, stage.open().await?);
    let held = stage.claim(&stage.election(), "elsewhere");
    let grant = stage.win(&handle, &held).await?;
    let dropped = drop_everywhere(|| {
        let handle = &handle;
        Box::pin(async move {
            let claim = stage.claim(&stage.election(), "a");
            Ok(Dropped { future: acquiring(handle, &claim), with: claim })
        })
    })
    .await?;
    let next = try_join_all(dropped.iter().map(async |claim| {
        let rival = stage.claim(&claim.election, "b");
        let grant = stage.win(&other, &rival).await?;
        // Whatever still contended in the background would be seen by the judge, or be in the way of the third.
        stage.keep(&other, &rival, &grant, now() + stage.ttl()).await?;
        stage.release(&other, &rival, Some(&grant)).await?;
        let third = stage.claim(&claim.election, "c");
        stage.win_unaided(&other, &third).await?;
        let seen = stage.observe(&other, &claim.election).await?;
        let leads = seen.leader.as_ref().is_some_and(|leader| leader.contender.nonce == Some(third.nonce));
        ensure!(leads, "another one than the winner leads: {seen:?}");
        Outcome::Ok(())
    }));
    let lead = async {
        let mut grant = grant;
        // As long as the others need: errors and a lost term are no matter of this case, silence would be.
        loop {
            tokio::time::sleep(stage.ttl() / 4).await;
            if let Ok(incumbent_core::Renewed::Extended { sent_at, .. }) = handle.renew(&held, &grant).await {
                grant.sent_at = sent_at;
            }
        }
    };
    tokio::select! {
        done = next => done.map(drop),
        () = lead => Ok(()),
    }
}

/// It was behind a leader, who then releases.
async fn r8_a_dropped_acquire_of_a_waiting_candidate_leaves_nothing(stage: &Stage) -> Outcome {
    let (leader, handle, other) = (stage.open().await?, stage.open().await?, stage.open().await?);
    let dropped = drop_everywhere(|| {
        let (leader, handle) = (&leader, &handle);
        Box::pin(async move {
            let leading = stage.claim(&stage.election(), "leader");
            let grant = stage.win(leader, &leading).await?;
            let claim = stage.claim(&leading.election, "a");
            Ok(Dropped { future: acquiring(handle, &claim), with: (leading, grant, claim) })
        })
    })
    .await?;
    try_join_all(dropped.iter().map(async |(leading, grant, claim)| {
        let rival = stage.claim(&claim.election, "b");
        stage.release(&leader, leading, Some(grant)).await?;
        // What a queue keeps for a campaign, the campaign gives up.
        stage.release(&handle, claim, None).await?;
        let grant = stage.win_unaided(&other, &rival).await?;
        stage.keep(&other, &rival, &grant, now() + stage.ttl()).await
    }))
    .await?;
    Ok(())
}

/// It asks again, as an elector does, and wins.
async fn r8_after_a_dropped_acquire_the_campaign_can_go_on(stage: &Stage) -> Outcome {
    let handle = stage.open().await?;
    let dropped = drop_everywhere(|| {
        let handle = &handle;
        Box::pin(async move {
            let claim = stage.claim(&stage.election(), "a");
            Ok(Dropped { future: acquiring(handle, &claim), with: claim })
        })
    })
    .await?;
    try_join_all(dropped.iter().map(async |claim| {
        let grant = stage.win(&handle, claim).await?;
        stage.must_extend(&handle, claim, &grant).await
    }))
    .await?;
    Ok(())
}

/// The next renewal finds it as it was.
async fn r8_a_dropped_renewal_leaves_the_grant_whole(stage: &Stage) -> Outcome {
    let (handle, other) = (stage.open().await?, stage.open().await?);
    let election = stage.election();
    let claim = stage.claim(&election, "a");
    let grant = stage.win(&handle, &claim).await?;
    drop_everywhere(|| {
        let (handle, claim, grant) = (handle.clone(), claim.clone(), grant.clone());
        Box::pin(async move {
            stage.must_extend(&handle, &claim, &grant).await?;
            // Far enough from the last proof that this renewal needs one of its own.
            tokio::time::sleep(stage.ttl() / 4).await;
            let future: LocalBoxFuture<'static, ()> = Box::pin(async move {
                let _ = handle.renew(&claim, &grant).await;
            });
            Ok(Dropped { future, with: () })
        })
    })
    .await?;
    stage.must_extend(&handle, &claim, &grant).await?;
    // Then it is silent, and nothing renews it in the background.
    stage.win(&other, &stage.claim(&election, "b")).await?;
    Ok(())
}

/// Half of them are repeated.
async fn r8_a_dropped_release_can_be_repeated_or_left(stage: &Stage) -> Outcome {
    let (handle, other) = (stage.open().await?, stage.open().await?);
    let dropped = drop_everywhere(|| {
        let handle = &handle;
        Box::pin(async move {
            let claim = stage.claim(&stage.election(), "a");
            let grant = stage.win(handle, &claim).await?;
            let (handle, releasing) = (handle.clone(), claim.clone());
            let future: LocalBoxFuture<'static, ()> = Box::pin(async move {
                let _ = handle.release(&releasing, Some(&grant), None).await;
            });
            Ok(Dropped { future, with: claim })
        })
    })
    .await?;
    for claim in dropped.iter().step_by(2) {
        stage.release(&handle, claim, None).await?;
    }
    try_join_all(dropped.iter().map(async |claim| {
        let rival = stage.claim(&claim.election, "b");
        let grant = stage.win(&other, &rival).await?;
        stage.keep(&other, &rival, &grant, now() + stage.ttl() / 2).await
    }))
    .await?;
    Ok(())
}

/// Nobody repeats it, and its connection lives; those behind it come first all the same.
async fn r8_a_dropped_release_of_a_waiting_candidate_gives_up_its_place(stage: &Stage) -> Outcome {
    let (leader, handle, other) = (stage.open().await?, stage.open().await?, stage.open().await?);
    let dropped = drop_everywhere(|| {
        let (leader, handle) = (&leader, &handle);
        Box::pin(async move {
            let leading = stage.claim(&stage.election(), "leader");
            let grant = stage.win(leader, &leading).await?;
            let waiting = stage.claim(&leading.election, "a");
            stage.must_not_win(handle, &waiting).await?;
            let handle = handle.clone();
            let future: LocalBoxFuture<'static, ()> = Box::pin(async move {
                let _ = handle.release(&waiting, None, None).await;
            });
            Ok(Dropped { future, with: (leading, grant) })
        })
    })
    .await?;
    // It goes on with something else, which keeps its session, if it has one, alive.
    let held = stage.claim(&stage.election(), "elsewhere");
    let grant = stage.win(&handle, &held).await?;
    let keep = stage.keep(&handle, &held, &grant, now() + stage.takeover() * 2);
    let win = try_join_all(dropped.iter().map(async |(leading, grant)| {
        stage.release(&leader, leading, Some(grant)).await?;
        stage.win_unaided(&other, &stage.claim(&leading.election, "b")).await
    }));
    tokio::select! {
        kept = keep => kept.map(drop),
        won = win => won.map(drop),
    }
}

/// Whole or not at all, before whatever the connection asks next (unless the store answers reads out of turn, and then not much
/// later), and it can be written afterwards.
async fn r8_a_dropped_write_of_a_note_is_done_or_not(stage: &Stage) -> Outcome {
    let (handle, election) = (stage.open().await?, stage.election());
    let grant = stage.win(&handle, &stage.claim(&election, "a")).await?;
    let token = grant.token.unwrap_or(incumbent_core::FencingToken(1));
    let body = |number: u8| vec![number; 2000];
    let mut read = handle.read_note(&election, Note::Checkpoint).await?;
    // What may still be done: each write was to replace `before`, so that at most one of them is.
    let (mut before, mut under_way) = (read.clone(), Vec::new());
    for polls in 1..=WAITS_MAX {
        let number = u8::try_from(polls).unwrap_or_default();
        if read != before || !stage.harness.reads_out_of_turn() {
            under_way.clear();
        }
        under_way.push(body(number));
        before = read;
        let swap = handle.swap_note(&election, Note::Checkpoint, before.as_ref(), token, body(number));
        let ended = abandon::after_polls(polls, swap).await.is_some();
        read = handle.read_note(&election, Note::Checkpoint).await?;
        let whole = read.as_ref().is_some_and(|read| under_way.contains(&read.body)) || read == before;
        ensure!(whole, "a dropped write left neither the old note nor the new one: {before:?}, {read:?}");
        if ended {
            break;
        }
    }
    tokio::time::sleep(stage.ttl()).await;
    let settled = handle.read_note(&election, Note::Checkpoint).await?;
    let late = settled != read && !stage.harness.reads_out_of_turn();
    ensure!(!late, "a dropped write was done long after it: {read:?}, then {settled:?}");
    let swap = handle.swap_note(&election, Note::Checkpoint, settled.as_ref(), token, body(0)).await?;
    ensure!(matches!(swap, Swapped::Done { .. }), "after dropped writes none is done any more");
    Ok(())
}

/// A grant that nobody renews any more runs out, whatever else its connection renews.
async fn r8_an_abandoned_grant_ends_although_its_connection_lives(stage: &Stage) -> Outcome {
    let (handle, other) = (stage.open().await?, stage.open().await?);
    let kept = stage.claim(&stage.election(), "kept");
    let kept_grant = stage.win(&handle, &kept).await?;
    let abandoned = stage.claim(&stage.election(), "abandoned");
    stage.win(&handle, &abandoned).await?;
    let rival = stage.claim(&abandoned.election, "b");
    let keep = stage.keep(&handle, &kept, &kept_grant, now() + stage.takeover() * 2);
    let win = stage.win(&other, &rival);
    tokio::select! {
        kept = keep => { kept?; }
        won = win => { won?; }
    }
    let seen = stage.observe(&handle, &abandoned.election).await?;
    let nonce = seen.leader.and_then(|leader| leader.contender.nonce);
    ensure!(nonce == Some(rival.nonce), "the abandoned grant is still there");
    let answer = handle.try_acquire(&stage.claim(&kept.election, "c")).await;
    ensure!(!matches!(answer, Ok(Acquired::Granted(_))), "what was renewed is lost with what was abandoned");
    stage.must_extend(&handle, &kept, &kept_grant).await?;
    Ok(())
}
