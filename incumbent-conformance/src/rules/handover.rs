//! Hand-over: a leader that goes can name the next one, and the store prefers it for one ttl.

use std::cell::Cell;

use futures_util::future::try_join_all;
use incumbent_core::guarantees::Transfer;
use incumbent_core::{Acquired, CandidateId, Claim, Grant, HandoverRequest, Note, Swapped};

use super::{Rule, case};
use crate::clock::now;
use crate::stage::{Handle, Outcome, Stage, Stop, ensure};

pub(super) const RULE: Rule = Rule {
    id: "Handover",
    cases: &[
        case!(handover_the_candidate_that_is_named_wins),
        case!(handover_to_one_who_is_not_there_costs_one_takeover),
        case!(handover_a_request_is_read_as_it_was_written),
    ],
};

fn needs_targets(stage: &Stage) -> Outcome {
    if stage.guarantees.transfer == Transfer::Targeted && stage.guarantees.has_tokens() {
        return Ok(());
    }
    Err(Stop::NotApplicable("the backend declares that the next in line follows".to_owned()))
}

/// As `incumbent transfer` does: the wish is written down, candidates that stand in the way make way, the leader releases.
async fn hand_over(
    stage: &Stage,
    handle: &Handle,
    claim: &Claim,
    grant: &Grant,
    to: &CandidateId,
) -> Outcome {
    let Some(token) = grant.token else { return Ok(()) };
    let request = HandoverRequest { token, to: Some(to.clone()) };
    let swapped = handle.swap_note(&claim.election, Note::Handover, None, token, request.encode()).await?;
    ensure!(matches!(swapped, Swapped::Done { .. }), "the request cannot be written: {swapped:?}");
    stage.keep(handle, claim, grant, now() + stage.ttl() / 2).await?;
    stage.answer(async || handle.release(claim, Some(grant), Some(to)).await).await?;
    Ok(())
}

/// Not the one that asks most often, nor the one that has waited longest.
async fn handover_the_candidate_that_is_named_wins(stage: &Stage) -> Outcome {
    needs_targets(stage)?;
    let election = stage.election();
    let handles = stage.open_many(4).await?;
    let claim = stage.claim(&election, "leader");
    let grant = stage.win(&handles[0], &claim).await?;
    let waiting: Vec<_> = ["b", "c", "d"].map(|id| stage.claim(&election, id)).into();
    for (handle, claim) in handles[1..].iter().zip(&waiting) {
        stage.must_not_win(handle, claim).await?;
    }
    let target = &waiting[2];
    let (released, won) = (Cell::new(false), Cell::new(false));
    let end = now() + stage.takeover() * 2;
    let candidates = handles[1..].iter().zip(&waiting).map(async |(handle, waiting)| {
        let is_target = waiting.nonce == target.nonce;
        while !won.get() {
            ensure!(now() < end, "nobody won after the hand-over");
            tokio::time::sleep(stage.ttl() / 50).await;
            // The target is the laziest of them, but well within the ttl in which it is preferred.
            if is_target && !released.get() {
                continue;
            } else if is_target {
                tokio::time::sleep(stage.ttl() / 4).await;
            }
            if let Acquired::Granted(_) = stage.answer(async || handle.try_acquire(waiting).await).await? {
                won.set(true);
                ensure!(is_target, "{} won, not {}", waiting.id, target.id);
            }
        }
        Ok(())
    });
    let leader = async {
        hand_over(stage, &handles[0], &claim, &grant, &target.id).await?;
        released.set(true);
        Ok(())
    };
    tokio::try_join!(try_join_all(candidates), leader)?;
    Ok(())
}

/// The others do not wait for ever.
async fn handover_to_one_who_is_not_there_costs_one_takeover(stage: &Stage) -> Outcome {
    needs_targets(stage)?;
    let election = stage.election();
    let (handle, other) = (stage.open().await?, stage.open().await?);
    let (claim, next) = (stage.claim(&election, "a"), stage.claim(&election, "b"));
    let grant = stage.win(&handle, &claim).await?;
    stage.must_not_win(&other, &next).await?;
    let ghost = stage.claim(&election, "ghost");
    hand_over(stage, &handle, &claim, &grant, &ghost.id).await?;
    stage.win_unaided(&other, &next).await?;
    Ok(())
}

/// By the leader, on another connection; and it is no business of the next term.
async fn handover_a_request_is_read_as_it_was_written(stage: &Stage) -> Outcome {
    stage.needs_tokens()?;
    let election = stage.election();
    let (handle, other) = (stage.open().await?, stage.open().await?);
    let claim = stage.claim(&election, "a");
    let grant = stage.win(&handle, &claim).await?;
    let Some(token) = grant.token else { return Ok(()) };
    let request = HandoverRequest { token, to: Some(stage.claim(&election, "b").id) };
    other.swap_note(&election, Note::Handover, None, token, request.encode()).await?;
    let Some(stored) = stage.answer(async || handle.read_note(&election, Note::Handover).await).await? else {
        return Err(Stop::Failed("the leader does not see the request".to_owned()));
    };
    ensure!(
        HandoverRequest::decode(&stored)? == Some(request),
        "the leader sees another request: {stored:?}"
    );
    stage.must_extend(&handle, &claim, &grant).await?;
    let again =
        other.swap_note(&election, Note::Handover, Some(&stored), token, HandoverRequest::withdrawn());
    ensure!(matches!(again.await?, Swapped::Done { .. }), "the request cannot be withdrawn");
    let Some(stored) = stage.answer(async || handle.read_note(&election, Note::Handover).await).await? else {
        return Err(Stop::Failed("the note is gone".to_owned()));
    };
    ensure!(HandoverRequest::decode(&stored)?.is_none(), "a request that was withdrawn is still there");
    Ok(())
}
