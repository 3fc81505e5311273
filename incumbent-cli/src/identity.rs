//! Who this candidate is, if nobody says so.

use incumbent::{CandidateId, Result};

use crate::store::Source;

const POD_NAME: &str = "POD_NAME";

/// The id that was typed, else the Pod's name, else host and process.
///
/// # Errors
/// If the Pod's name is no id.
pub(crate) fn choose(typed: Option<&CandidateId>) -> Result<(CandidateId, Source)> {
    if let Some(id) = typed {
        return Ok((id.clone(), Source::Flag));
    }
    if let Some(pod) = std::env::var(POD_NAME).ok().filter(|pod| !pod.is_empty()) {
        return Ok((CandidateId::new(pod)?, Source::Environment(POD_NAME)));
    }
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy();
    Ok((CandidateId::new(format!("{host}:{}", std::process::id()))?, Source::Default))
}
