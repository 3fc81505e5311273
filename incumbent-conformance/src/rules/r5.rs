//! R5: `release` removes only its own grant, is idempotent, never a successor's.

use super::{Rule, case};
use crate::clock::now;
use crate::stage::{Outcome, Stage, Stop, ensure};

pub(super) const RULE: Rule = Rule {
    id: "R5",
    cases: &[
        case!(r5_a_release_lets_the_next_one_in_at_once),
        case!(r5_a_release_without_a_grant_removes_a_grant_whose_answer_was_lost),
        case!(r5_release_is_idempotent),
        case!(r5_an_ended_campaign_releases_nothing_of_its_successor),
        case!(r5_a_campaign_whose_session_was_ended_releases_nothing_of_its_successor),
        case!(r5_a_campaign_whose_record_was_deleted_releases_nothing_of_its_successor),
        case!(r5_another_campaign_of_the_same_id_releases_nothing),
        case!(r5_a_waiting_campaign_releases_nothing_of_the_leader),
    ],
};

/// Long before its lease would have run out.
async fn r5_a_release_lets_the_next_one_in_at_once(stage: &Stage) -> Outcome {
    free_by(stage, true).await
}

/// The same, for a grant of which the campaign never heard.
async fn r5_a_release_without_a_grant_removes_a_grant_whose_answer_was_lost(stage: &Stage) -> Outcome {
    free_by(stage, false).await
}

async fn free_by(stage: &Stage, knows_its_grant: bool) -> Outcome {
    let (handle, other) = (stage.open().await?, stage.open().await?);
    // One of three: a busy machine may let a lease run out in between, which proves nothing.
    for _ in 0..3 {
        let election = stage.election();
        let (first, second) = (stage.claim(&election, "a"), stage.claim(&election, "b"));
        let grant = stage.win(&handle, &first).await?;
        stage.must_not_win(&other, &second).await?;
        stage.release(&handle, &first, knows_its_grant.then_some(&grant)).await?;
        // In a queue, the next one leads as soon as it is the first.
        let shown = stage.observe(&other, &election).await?.leader;
        ensure!(
            shown.is_none_or(|leader| leader.contender.nonce != Some(first.nonce)),
            "the store shows the leader after its release"
        );
        stage.win(&other, &second).await?;
        if now() < stage.certain_until(grant.sent_at) {
            return Ok(());
        }
    }
    Err(Stop::Failed("after a release the next one won no earlier than if there had been none".to_owned()))
}

/// Before and after a successor has won.
async fn r5_release_is_idempotent(stage: &Stage) -> Outcome {
    let (handle, other, election) = (stage.open().await?, stage.open().await?, stage.election());
    let (first, second) = (stage.claim(&election, "a"), stage.claim(&election, "b"));
    let grant = stage.win(&handle, &first).await?;
    stage.release(&handle, &first, Some(&grant)).await?;
    stage.release(&handle, &first, Some(&grant)).await?;
    let next = stage.win(&other, &second).await?;
    stage.release(&handle, &first, Some(&grant)).await?;
    stage.release(&handle, &first, None).await?;
    stage.must_extend(&other, &second, &next).await?;
    stage.must_not_win(&handle, &stage.claim(&election, "c")).await?;
    Ok(())
}

/// Its lease has run out; it wakes up and releases what it believes to hold.
async fn r5_an_ended_campaign_releases_nothing_of_its_successor(stage: &Stage) -> Outcome {
    let (handle, other, election) = (stage.open().await?, stage.open().await?, stage.election());
    let (first, second) = (stage.claim(&election, "a"), stage.claim(&election, "b"));
    let old = stage.win(&handle, &first).await?;
    let new = stage.win(&other, &second).await?;
    stage.release(&handle, &first, Some(&old)).await?;
    stage.must_extend(&other, &second, &new).await?;
    stage.must_not_win(&handle, &stage.claim(&election, "c")).await?;
    Ok(())
}

/// As an operator, or a server that was mistaken, ends it. The release must look whose the grant is by now.
async fn r5_a_campaign_whose_session_was_ended_releases_nothing_of_its_successor(stage: &Stage) -> Outcome {
    superseded(stage, true).await
}

async fn r5_a_campaign_whose_record_was_deleted_releases_nothing_of_its_successor(stage: &Stage) -> Outcome {
    superseded(stage, false).await
}

/// What the leader has is taken from it, and another one wins. With or without its grant, it can take nothing back.
async fn superseded(stage: &Stage, by_its_session: bool) -> Outcome {
    for knows_its_grant in [true, false] {
        let (handle, other) = (stage.open().await?, stage.open().await?);
        let election = stage.election();
        let (first, second) = (stage.claim(&election, "a"), stage.claim(&election, "b"));
        let old = stage.win(&handle, &first).await?;
        let take = match by_its_session {
            true => stage.harness.end_session(&election),
            false => stage.harness.delete(&election),
        };
        stage.removal(Some(&election), take).await?;
        let new = stage.win(&other, &second).await?;
        stage.release(&handle, &first, knows_its_grant.then_some(&old)).await?;
        stage.must_extend(&other, &second, &new).await?;
        stage.must_not_win(&handle, &stage.claim(&election, "c")).await?;
    }
    Ok(())
}

/// It has the name, and even the leader's grant.
async fn r5_another_campaign_of_the_same_id_releases_nothing(stage: &Stage) -> Outcome {
    let (handle, other, election) = (stage.open().await?, stage.open().await?, stage.election());
    let (claim, twin) = (stage.claim(&election, "a"), stage.claim(&election, "a"));
    let grant = stage.win(&handle, &claim).await?;
    stage.release(&other, &twin, None).await?;
    stage.release(&other, &twin, Some(&grant)).await?;
    stage.must_extend(&handle, &claim, &grant).await?;
    stage.must_not_win(&other, &twin).await?;
    Ok(())
}

/// It only leaves the queue.
async fn r5_a_waiting_campaign_releases_nothing_of_the_leader(stage: &Stage) -> Outcome {
    let (handle, other, election) = (stage.open().await?, stage.open().await?, stage.election());
    let (claim, waiting) = (stage.claim(&election, "a"), stage.claim(&election, "b"));
    let grant = stage.win(&handle, &claim).await?;
    stage.must_not_win(&other, &waiting).await?;
    stage.release(&other, &waiting, None).await?;
    stage.must_extend(&handle, &claim, &grant).await?;
    if stage.guarantees.lists_candidates {
        let listed = stage.observe(&handle, &election).await?.candidates.unwrap_or_default();
        let gone = listed.iter().all(|candidate| candidate.nonce != Some(waiting.nonce));
        ensure!(gone, "a campaign that has ended is still listed: {listed:?}");
    }
    Ok(())
}
