//! Asking a leader to hand over.

use std::sync::Arc;
use std::time::Duration;

use incumbent_core::time::exact;
use incumbent_core::{
    Backend, CandidateId, ElectionName, Error, ErrorKind, FencingToken, HandoverRequest, Note, Observation,
    Result, Swapped,
};

use crate::clock;

/// How often the store is asked whether the leader has gone.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Attempts to write the note against others that write it too.
const WRITES: usize = 8;

pub(crate) async fn request(
    backend: Arc<dyn Backend>,
    election: ElectionName,
    to: Option<CandidateId>,
    patience: Duration,
) -> Result<FencingToken> {
    let observation = backend.observe(&election).await?;
    let token = addressed(&election, &observation, to.as_ref())?;
    let request = HandoverRequest { token, to };
    write(&*backend, &election, token, request.encode()).await?;
    let give_up_at = clock::now() + patience;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let leader = backend.observe(&election).await?.leader;
        if leader.as_ref().and_then(|leader| leader.token) != Some(token) {
            return Ok(token);
        }
        if clock::now() >= give_up_at {
            write(&*backend, &election, token, HandoverRequest::withdrawn()).await?;
            return Err(Error::new(
                ErrorKind::TimedOut,
                format!(
                    "the leader of {election} has not gone within {}; the request is withdrawn",
                    exact(patience)
                ),
            ));
        }
    }
}

/// The token of the term that the request addresses, if the request can be obeyed at all.
fn addressed(election: &ElectionName, shown: &Observation, to: Option<&CandidateId>) -> Result<FencingToken> {
    let Some(leader) = &shown.leader else {
        return Err(Error::new(ErrorKind::NotFound, format!("nobody leads {election}")));
    };
    if leader.contender.is_foreign() {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{election} is led by {}, a client of another kind, which cannot be asked to go",
                leader.contender.id
            ),
        ));
    }
    let token = leader.token.ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, "this backend has no tokens to address a term by")
    })?;
    let Some(to) = to else { return Ok(token) };
    if leader.contender.id == to.as_str() {
        return Err(Error::new(ErrorKind::NotFound, format!("{to} leads {election} already")));
    }
    let Some(candidates) = &shown.candidates else { return Ok(token) };
    let Some(place) = candidates.iter().position(|candidate| candidate.id == to.as_str()) else {
        let ids: Vec<&str> = candidates.iter().map(|candidate| candidate.id.as_str()).collect();
        return Err(Error::new(
            ErrorKind::NotFound,
            format!(
                "{election} has no candidate {to}; its candidates are {}; one that has just given up its term pauses for up to half its ttl: if that is {to}, try again",
                ids.join(", ")
            ),
        ));
    };
    let ahead = candidates[..place].iter().filter(|candidate| candidate.is_foreign());
    let ahead: Vec<&str> = ahead.map(|candidate| candidate.id.as_str()).collect();
    if !ahead.is_empty() {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("before {to} stand clients of another kind, which do not make way: {}", ahead.join(", ")),
        ));
    }
    Ok(token)
}

async fn write(
    backend: &dyn Backend,
    election: &ElectionName,
    token: FencingToken,
    body: Vec<u8>,
) -> Result<()> {
    for _ in 0..WRITES {
        let stored = backend.read_note(election, Note::Handover).await?;
        let swap = backend.swap_note(election, Note::Handover, stored.as_ref(), token, body.clone());
        if let Swapped::Done { .. } = swap.await? {
            return Ok(());
        }
    }
    Err(Error::new(ErrorKind::Unavailable, "the hand-over request is being overwritten by others; try again"))
}
