//! R11: a candidate watches its own record as well as the one before it: a session that ended, or a record that someone deleted,
//! is noticed.

use futures_util::StreamExt;
use incumbent_core::ElectionName;
use incumbent_core::guarantees::Handover;

use super::{Rule, case};
use crate::harness::{Harness, Hook};
use crate::stage::{Outcome, Stage, Stop};

pub(super) const RULE: Rule = Rule {
    id: "R11",
    cases: &[
        case!(r11_a_leader_notices_that_its_record_was_deleted),
        case!(r11_a_leader_notices_that_its_record_was_overwritten),
        case!(r11_a_leader_notices_that_its_session_has_ended),
        case!(r11_a_waiting_candidate_notices_that_its_place_was_deleted),
    ],
};

async fn r11_a_leader_notices_that_its_record_was_deleted(stage: &Stage) -> Outcome {
    leader_notices(stage, |harness, election| harness.delete(election)).await
}

async fn r11_a_leader_notices_that_its_record_was_overwritten(stage: &Stage) -> Outcome {
    leader_notices(stage, |harness, election| harness.replace(election)).await
}

async fn r11_a_leader_notices_that_its_session_has_ended(stage: &Stage) -> Outcome {
    leader_notices(stage, |harness, election| harness.end_session(election)).await
}

/// It gets a hint (one of three may be lost), its renewal says that the grant is lost, and afterwards the
/// same connection can win again.
async fn leader_notices(
    stage: &Stage,
    removal: for<'a> fn(&'a dyn Harness, &'a ElectionName) -> Hook<'a>,
) -> Outcome {
    let handle = stage.open().await?;
    let pushed = stage.guarantees.handover == Handover::Pushed;
    let mut hinted = false;
    for _ in 0..3 {
        let election = stage.election();
        let claim = stage.claim(&election, "a");
        let grant = stage.win(&handle, &claim).await?;
        stage.must_extend(&handle, &claim, &grant).await?;
        let mut hints = handle.watch(&election, Some(&claim));
        if let Some(hints) = &mut hints {
            // A subscription may need a moment to reach the store.
            let _ = tokio::time::timeout(stage.ttl() / 4, hints.next()).await;
        }
        stage.removal(Some(&election), removal(&*stage.harness, &election)).await?;
        if pushed && let Some(hints) = &mut hints {
            hinted = matches!(tokio::time::timeout(stage.takeover(), hints.next()).await, Ok(Some(Ok(()))));
        }
        drop(hints);
        stage.must_be_lost(&handle, &claim, &grant).await?;
        stage.release(&handle, &claim, Some(&grant)).await?;
        stage.win(&handle, &stage.claim(&election, "a")).await?;
        if hinted || !pushed {
            return Ok(());
        }
    }
    Err(Stop::Failed(
        "changes are declared as pushed, and the leader got no hint of what happened to its own".to_owned(),
    ))
}

/// It takes a new place and wins.
async fn r11_a_waiting_candidate_notices_that_its_place_was_deleted(stage: &Stage) -> Outcome {
    let (handle, other, election) = (stage.open().await?, stage.open().await?, stage.election());
    let (claim, waiting) = (stage.claim(&election, "a"), stage.claim(&election, "b"));
    let grant = stage.win(&handle, &claim).await?;
    stage.must_not_win(&other, &waiting).await?;
    stage.hook(stage.harness.delete_place(&waiting)).await?;
    stage.release(&handle, &claim, Some(&grant)).await?;
    stage.win_unaided(&other, &waiting).await?;
    Ok(())
}
