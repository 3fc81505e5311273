//! Whether the others would let this peer in, tried without being it: for who asks what is wrong with it.

use std::sync::Arc;

use futures_util::future::join_all;
use incumbent_core::{ErrorKind, Result};

use super::config::Config;
use super::handshake::{self, Badge, Membership, Own};
use super::known::Known;
use super::node::{own_list, own_state};
use super::notes::nonce;
use super::roster::Roster;
use super::state::{self, User};

/// What those say that would not let in the peer of the URL, which may be running in another process.
///
/// # Errors
/// What is wrong with its state; [`ErrorKind::InvalidConfig`] if so many refuse it that it could take part in nothing.
pub(super) async fn run(config: &Arc<Config>) -> Result<Vec<String>> {
    let (Some(name), Some(dir)) = (&config.name, &config.state) else { return Ok(Vec::new()) };
    let Some((state, user)) = state::look(dir)? else {
        let text = "this user must not read it, so it was not tried whether the others let this peer in";
        return Ok(vec![format!("{}: {text}", dir.display())]);
    };
    // With the list that the peer itself would show.
    let roster = Arc::new(Roster::of_url(&config.members));
    let config = Arc::new(Config { roster, ..(**config).clone() });
    own_state(&config, name, dir, &state)?;
    if let Some(membership) = &state.membership {
        own_list(&config, name, &membership.list)?;
    }
    let run = match user {
        User::Nobody => nonce()?,
        User::Run(run) => run,
        User::Somebody => return Ok(Vec::new()),
    };
    let badge = Badge { name: name.clone(), nonce: state.nonce, run };
    let known = Arc::new(Known::new(state.known, None));
    let member = Some(Membership { cluster: state.cluster, badge, known });
    let own = Own { config: Arc::clone(&config), member, trial: true };
    let listed = config.roster.get();
    let others = listed.others(name);
    let answers = join_all(others.iter().map(|other| handshake::dial(&own, other))).await;
    let refusals: Vec<_> = answers
        .iter()
        .filter_map(|answer| answer.as_ref().err().filter(|unspoken| unspoken.refused))
        .map(|unspoken| unspoken.error.to_string())
        .collect();
    let let_in = 1 + answers.iter().filter(|answer| answer.is_ok()).count();
    if refusals.is_empty() || let_in >= config.quorum() {
        return Ok(refusals);
    }
    let text = format!(
        "this peer and those that let it in are {let_in} of {}, and a majority is {}: {}",
        listed.list.members.len(),
        config.quorum(),
        refusals.join("; ")
    );
    Err(config.error(ErrorKind::InvalidConfig, text))
}
