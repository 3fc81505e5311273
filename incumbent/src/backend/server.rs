//! What the URLs of all stores that stand on a server have in common.

use std::path::PathBuf;

use incumbent_core::Result;

use super::tls::Tls;
use crate::url::{StoreUrl, bad};

/// The TLS settings that a URL asks for; `None` for plain text. Without a word about it TLS is on for hosts that are not on this
/// machine.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`](incumbent_core::ErrorKind::InvalidConfig) if the parameters contradict each other.
pub(super) fn tls(url: &StoreUrl) -> Result<Option<Tls>> {
    tls_to(url, url.hosts.iter().all(|host| host.is_loopback()))
}

/// The same for hosts that stand elsewhere than in front; `local`: all of them are on this machine.
pub(super) fn tls_to(url: &StoreUrl, local: bool) -> Result<Option<Tls>> {
    let given = ["ca", "cert", "key", "server_name"].into_iter().find(|name| url.parameter(name).is_some());
    let wanted = match url.parameter("tls") {
        Some("on") => true,
        Some("off") => false,
        Some(other) => return Err(bad(format!("tls={other} is neither on nor off"))),
        None if given.is_some() => true,
        None => !local,
    };
    if !wanted {
        return match given {
            Some(name) => Err(bad(format!("{name}= means nothing with tls=off; leave one of them out"))),
            None => Ok(None),
        };
    }
    let path = |name| url.parameter(name).map(PathBuf::from);
    let identity = match (path("cert"), path("key")) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        _ => return Err(bad("cert= and key= only make sense together")),
    };
    Ok(Some(Tls { ca: path("ca"), identity, server_name: url.parameter("server_name").map(str::to_owned) }))
}
