//! R3: `renew` reports `Extended` only when a write through the store's commit path proved the grant current; the same holds
//! for `Granted`. The deadline counts from the send of that proof.

use futures_util::future::join_all;
use incumbent_core::{Acquired, Renewed};

use super::{Rule, case};
use crate::abandon;
use crate::clock::{now, sleep_until};
use crate::stage::{Outcome, Stage, ensure};

pub(super) const RULE: Rule = Rule {
    id: "R3",
    cases: &[
        case!(r3_each_proof_is_newer_than_the_one_before),
        case!(r3_a_late_answer_counts_from_its_send),
        case!(r3_a_coalesced_renewal_counts_from_its_send),
        case!(r3_a_grant_after_a_long_wait_is_proved_anew),
        case!(r3_no_extension_once_another_leads),
        case!(r3_an_expired_grant_is_extended_only_if_it_still_excludes),
        case!(r3_no_extension_after_deletion_of_the_record),
        case!(r3_no_extension_after_the_session_has_ended),
        case!(r3_a_held_back_answer_of_a_coalesced_renewal_counts_from_its_send, alone),
        case!(r3_a_stalled_store_proves_nothing, alone),
    ],
};

/// Else a leader would never gain time.
async fn r3_each_proof_is_newer_than_the_one_before(stage: &Stage) -> Outcome {
    let (handle, election) = (stage.open().await?, stage.election());
    let claim = stage.claim(&election, "a");
    let begin = now();
    let grant = stage.win(&handle, &claim).await?;
    ensure!(grant.sent_at + stage.ttl() > now(), "the grant had run out when it was answered: {grant:?}");
    ensure!(grant.ttl > stage.ttl() / 2, "asked for a ttl of {:?}, granted {:?}", stage.ttl(), grant.ttl);
    let mut last = grant.sent_at;
    for _ in 0..5 {
        tokio::time::sleep(stage.ttl() / 3).await;
        let sent_at = stage.must_extend(&handle, &claim, &grant).await?;
        ensure!(
            sent_at > last,
            "a renewal a third of the ttl later proves nothing newer: {:?}",
            last.since(begin)
        );
        last = sent_at;
    }
    Ok(())
}

/// The whole machine stands still between the send and the answer.
async fn r3_a_late_answer_counts_from_its_send(stage: &Stage) -> Outcome {
    let (handle, other, election) = (stage.open().await?, stage.open().await?, stage.election());
    let claim = stage.claim(&election, "a");
    let pause = stage.ttl() / 2;
    // The record, or the queue, is there, so that the acquire that is watched is the acquiring one alone.
    let before = stage.claim(&election, "before");
    let grant = stage.win(&other, &before).await?;
    stage.release(&other, &before, Some(&grant)).await?;

    let grant = match abandon::starved(pause, handle.try_acquire(&claim)).await {
        Ok(Acquired::Granted(grant)) => grant,
        // The backend may have given up on an answer that took this long.
        Ok(Acquired::Held { .. }) | Err(_) => stage.win(&handle, &claim).await?,
    };
    let renewed = abandon::starved(pause, handle.renew(&claim, &grant)).await;
    ensure!(!matches!(renewed, Ok(Renewed::Lost(_))), "the grant is lost after half of its ttl: {renewed:?}");
    // From here on it is silent, and the judge compares what it was told with when the other wins.
    stage.win(&other, &stage.claim(&election, "b")).await?;
    Ok(())
}

/// Many elections of one connection, which may share one proof: each deadline counts from the send of that proof.
async fn r3_a_coalesced_renewal_counts_from_its_send(stage: &Stage) -> Outcome {
    let (handle, other) = (stage.open().await?, stage.open().await?);
    let mut led = Vec::new();
    for _ in 0..8 {
        let claim = stage.claim(&stage.election(), "a");
        let grant = stage.win(&handle, &claim).await?;
        led.push((claim, grant));
    }
    tokio::time::sleep(stage.ttl() / 4).await;
    let renewals = join_all(led.iter().map(|(claim, grant)| handle.renew(claim, grant)));
    for renewed in abandon::starved(stage.ttl() / 3, renewals).await {
        ensure!(!matches!(renewed, Ok(Renewed::Lost(_))), "a grant is lost within its ttl: {renewed:?}");
    }
    let wins = led.iter().map(async |(claim, _)| stage.win(&other, &stage.claim(&claim.election, "b")).await);
    for won in join_all(wins).await {
        won?;
    }
    Ok(())
}

/// As before, but the answers are late on the way, not in the process: five times, ever longer. A backend may give up on an
/// answer and prove the grants anew, which on a busy machine leaves only the shortest to be late and yet taken.
async fn r3_a_held_back_answer_of_a_coalesced_renewal_counts_from_its_send(stage: &Stage) -> Outcome {
    let handle = stage.open().await?;
    let mut led = Vec::new();
    for _ in 0..8 {
        let claim = stage.claim(&stage.election(), "a");
        let grant = stage.win(&handle, &claim).await?;
        led.push((claim, grant));
    }
    let (mut extended, mut sent_before_passing) = (0, 0);
    for share in [40, 20, 10, 6, 4] {
        for (claim, grant) in &led {
            stage.must_extend(&handle, claim, grant).await?;
        }
        // Far enough from the last proof that the next renewals need one of their own.
        tokio::time::sleep(stage.ttl() / 4).await;
        stage.hook(stage.harness.hold_answers(true)).await?;
        let renewals = join_all(led.iter().map(|(claim, grant)| handle.renew(claim, grant)));
        let pass = async {
            tokio::time::sleep(stage.ttl() / share).await;
            let passed_at = now();
            stage.hook(stage.harness.hold_answers(false)).await.map(|()| passed_at)
        };
        let (renewals, passed_at) = tokio::join!(renewals, pass);
        let passed_at = passed_at?;
        for renewed in renewals {
            match renewed {
                Ok(Renewed::Extended { sent_at, .. }) => {
                    extended += 1;
                    sent_before_passing += u32::from(sent_at <= passed_at);
                }
                Ok(Renewed::Lost(seen)) => ensure!(false, "a grant is lost within its ttl: {seen:?}"),
                // It may have given up on an answer that took this long.
                Err(_) => {}
            }
        }
    }
    ensure!(extended > 0, "no renewal outlives an answer that is late by a tenth of the ttl");
    ensure!(
        sent_before_passing > 0,
        "each of {extended} late answers counts from its arrival, not from its send"
    );
    let other = stage.open().await?;
    let wins = led.iter().map(async |(claim, _)| stage.win(&other, &stage.claim(&claim.election, "b")).await);
    for won in join_all(wins).await {
        won?;
    }
    Ok(())
}

/// Whatever a waiting candidate has in the store must have been kept alive, and the grant counts from a proof of its own.
async fn r3_a_grant_after_a_long_wait_is_proved_anew(stage: &Stage) -> Outcome {
    let handles = stage.open_many(3).await?;
    let election = stage.election();
    let (leader, waiting) = (stage.claim(&election, "leader"), stage.claim(&election, "waiting"));
    let grant = stage.win(&handles[0], &leader).await?;
    let began = stage.must_not_win(&handles[1], &waiting).await.map(|_| now())?;
    let lead = async {
        stage.keep(&handles[0], &leader, &grant, began + stage.ttl() * 4).await?;
        stage.release(&handles[0], &leader, Some(&grant)).await
    };
    let wait = async {
        let end = began + stage.ttl() * 4 + stage.takeover();
        loop {
            match stage.answer(async || handles[1].try_acquire(&waiting).await).await? {
                Acquired::Granted(grant) => {
                    ensure!(
                        grant.sent_at + grant.ttl > now(),
                        "it had run out when it was answered: {grant:?}"
                    );
                    return Outcome::Ok(());
                }
                Acquired::Held { try_again, .. } => {
                    ensure!(now() < end, "the waiting candidate did not win after the release");
                    sleep_until(try_again.max(now() + stage.ttl() / 100)).await;
                }
            }
        }
    };
    tokio::try_join!(lead, wait)?;
    // It is silent from here on, and the judge compares what it was told with when the third wins.
    stage.win(&handles[2], &stage.claim(&election, "third")).await?;
    Ok(())
}

/// A leader that comes back after another has won is told so.
async fn r3_no_extension_once_another_leads(stage: &Stage) -> Outcome {
    let (handle, other, election) = (stage.open().await?, stage.open().await?, stage.election());
    let (first, second) = (stage.claim(&election, "a"), stage.claim(&election, "b"));
    let old = stage.win(&handle, &first).await?;
    let new = stage.win(&other, &second).await?;
    let seen = stage.must_be_lost(&handle, &first, &old).await?;
    let leads = seen.leader.as_ref().is_some_and(|leader| leader.contender.nonce == Some(second.nonce));
    ensure!(leads, "the loser is not shown who leads: {seen:?}");
    stage.must_extend(&other, &second, &new).await?;
    Ok(())
}

/// Nobody has taken its place. Whether it is extended is the store's affair, but then it excludes others again.
async fn r3_an_expired_grant_is_extended_only_if_it_still_excludes(stage: &Stage) -> Outcome {
    let (handle, other, election) = (stage.open().await?, stage.open().await?, stage.election());
    let claim = stage.claim(&election, "a");
    let grant = stage.win(&handle, &claim).await?;
    tokio::time::sleep(stage.guarantees.takeover_max(stage.ttl()) + stage.ttl() / 2).await;
    let _ = handle.renew(&claim, &grant).await;
    stage.win(&other, &stage.claim(&election, "b")).await?;
    Ok(())
}

/// An operator has deleted it; the leader's connection is well.
async fn r3_no_extension_after_deletion_of_the_record(stage: &Stage) -> Outcome {
    let (handle, election) = (stage.open().await?, stage.election());
    let claim = stage.claim(&election, "a");
    let grant = stage.win(&handle, &claim).await?;
    stage.must_extend(&handle, &claim, &grant).await?;
    stage.removal(Some(&election), stage.harness.delete(&election)).await?;
    stage.must_be_lost(&handle, &claim, &grant).await?;
    Ok(())
}

/// An operator has ended it; the leader's connection is well.
async fn r3_no_extension_after_the_session_has_ended(stage: &Stage) -> Outcome {
    let (handle, election) = (stage.open().await?, stage.election());
    let claim = stage.claim(&election, "a");
    let grant = stage.win(&handle, &claim).await?;
    stage.must_extend(&handle, &claim, &grant).await?;
    stage.removal(Some(&election), stage.harness.end_session(&election)).await?;
    stage.must_be_lost(&handle, &claim, &grant).await?;
    Ok(())
}

/// Its disk hangs, and still it answers keep-alives and reads.
async fn r3_a_stalled_store_proves_nothing(stage: &Stage) -> Outcome {
    let (handle, election) = (stage.open().await?, stage.election());
    let claim = stage.claim(&election, "a");
    let grant = stage.win(&handle, &claim).await?;
    stage.hook(stage.harness.stall(true)).await?;
    let stalled_at = now();
    let mut extended = None;
    let mut calls = 0;
    while now() < stalled_at + stage.ttl() * 2 {
        let renewed = abandon::after(stage.ttl() / 3, handle.renew(&claim, &grant)).await;
        calls += 1;
        if let Some(Ok(Renewed::Extended { sent_at, .. })) = renewed
            && sent_at > stalled_at
        {
            extended = Some(sent_at);
            break;
        }
        tokio::time::sleep(stage.ttl() / 20).await;
    }
    stage.hook(stage.harness.stall(false)).await?;
    if let Some(sent_at) = extended {
        let late = sent_at.since(stalled_at);
        ensure!(false, "a renewal sent {late:?} after the store had stopped to commit was extended");
    }
    ensure!(calls >= 2, "only {calls} renewals were tried");
    Ok(())
}
