//! Which backend is meant, why, and what a user should know about that choice.

use std::env::VarError;
use std::path::{Path, PathBuf};

use incumbent::{Connection, Error, ErrorKind, Result, Settings};

use crate::args::{StoreArgs, TermArgs};
use crate::output;

/// Where a setting comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Flag,
    Environment(&'static str),
    Url,
    Default,
}

impl Source {
    pub(crate) fn text(self) -> String {
        match self {
            Source::Flag => "flag".to_owned(),
            Source::Environment(name) => format!("environment: {name}"),
            Source::Url => "backend URL".to_owned(),
            Source::Default => "default".to_owned(),
        }
    }
}

/// The backend that was chosen.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    /// As `connect` wants it, and as a command finds it in `INCUMBENT_ON`. May hold a password.
    pub(crate) url: String,
    pub(crate) source: Source,
    pub(crate) settings: Settings,
    pub(crate) ttl_source: Source,
}

pub(crate) const ON: &str = "INCUMBENT_ON";

impl Store {
    /// What was typed, in this environment.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] if no backend is named where the embedded default would be wrong.
    pub(crate) fn choose(typed: &StoreArgs, term: Option<&TermArgs>) -> Result<Store> {
        let named = match std::env::var(ON) {
            Ok(url) => Some(url).filter(|url| !url.is_empty()),
            Err(VarError::NotPresent) => None,
            Err(VarError::NotUnicode(_)) => {
                return Err(Error::new(ErrorKind::InvalidConfig, "INCUMBENT_ON is not UTF-8"));
            }
        };
        let (url, source) = match (typed.on.clone(), named) {
            (Some(url), _) => (url, Source::Flag),
            (None, Some(url)) => (url, Source::Environment(ON)),
            (None, None) if in_kubernetes() => {
                return Err(Error::new(
                    ErrorKind::InvalidConfig,
                    "this is a Kubernetes Pod, where the embedded default would elect a leader in every Pod; name a backend that they share, as with --on kubernetes: or INCUMBENT_ON",
                ));
            }
            (None, None) => (format!("file:{}", escape(&incumbent::default_state_dir()?)), Source::Default),
        };
        let mut settings = Settings::default();
        let mut ttl_source = Source::Default;
        let (url, ttl_in_url) = match term.and_then(|term| term.ttl) {
            Some(ttl) => {
                settings.ttl = ttl;
                ttl_source = Source::Flag;
                (without_ttl(&absolute(&url)), false)
            }
            None => (absolute(&url), without_ttl(&url) != url),
        };
        if ttl_in_url {
            ttl_source = Source::Url;
        }
        if let Some(term) = term {
            settings.grace = term.grace;
            settings.drain = term.drain.map_or(settings.drain, |drain| drain.0);
        }
        Ok(Store { url, source, settings, ttl_source })
    }

    pub(crate) async fn connect(&self) -> Result<Connection> {
        incumbent::connect_with(&self.url, self.settings).await
    }

    /// What was typed, connected to: for the commands that ask and go.
    pub(crate) async fn open(typed: &StoreArgs) -> Result<(Store, Connection)> {
        let store = Store::choose(typed, None)?;
        if let Some(warning) = store.password_warning() {
            output::warn(warning);
        }
        let connection = store.connect().await?;
        if let Some(dir) = store.missing_dir() {
            output::warn(&format!("there is no directory {}; no candidate was ever there", dir.display()));
        }
        Ok((store, connection))
    }

    /// The directory of the embedded backend, if it is not there. A typing error, or the first `run` makes it.
    pub(crate) fn missing_dir(&self) -> Option<PathBuf> {
        incumbent::state_dir(&self.url).ok().flatten().filter(|dir| !dir.exists())
    }

    /// The URL for people: without a password.
    pub(crate) fn shown(&self) -> String {
        incumbent::redact(&self.url).into_owned()
    }

    /// The name of this peer, where the URL names peers.
    pub(crate) fn peer_name(&self) -> Option<String> {
        let (_, rest) = self.url.split_once("://")?;
        rest.split(['?', '/']).next().filter(|name| !name.is_empty()).map(str::to_owned)
    }

    /// What a user of the embedded default should know.
    pub(crate) fn note(&self) -> Option<String> {
        let path = self.url.strip_prefix("file:").filter(|_| self.source == Source::Default)?;
        let path = path.split('?').next().unwrap_or(path);
        Some(format!(
            "excludes only processes on this machine that use {path}; --on URL chooses another backend"
        ))
    }

    /// What a user of `run` should change.
    pub(crate) fn warnings(&self) -> Vec<&'static str> {
        let alone = self.url.starts_with("memory:");
        let in_container = self.source == Source::Default && in_container();
        self.password_warning()
            .into_iter()
            .chain(alone.then_some("memory: excludes nobody: each incumbent run is a process of its own"))
            .chain(in_container.then_some(
                "this is a container: the embedded default excludes nobody outside of it who does not share its folder; use --on URL",
            ))
            .collect()
    }

    fn password_warning(&self) -> Option<&'static str> {
        // What stands for a port and is none is hidden as well, but it may be no more than a typing error.
        let shown = self.shown();
        let has_secret = shown != self.url && (shown.contains("***@") || shown.contains("=***"));
        (self.source == Source::Flag && has_secret).then_some(
            "the password in --on can be read by every user of this machine; put the URL into INCUMBENT_ON or use ?password_file=PATH",
        )
    }
}

/// True in a Pod.
pub(crate) fn in_kubernetes() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

/// True if the usual marks of a container are there.
pub(crate) fn in_container() -> bool {
    Path::new("/.dockerenv").exists()
        || Path::new("/run/.containerenv").exists()
        || std::env::var_os("container").is_some_and(|name| !name.is_empty())
}

/// A relative `file:` path means the same folder for a command that changes its own.
fn absolute(url: &str) -> String {
    let Some(rest) = url.strip_prefix("file:").filter(|rest| !rest.starts_with('/')) else {
        return url.to_owned();
    };
    let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
    // `~` is no folder of that name; the library says so.
    if path.is_empty() || path.starts_with('~') {
        return url.to_owned();
    }
    let Ok(folder) = std::env::current_dir() else { return url.to_owned() };
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("file:{}/{path}{query}", escape(&folder))
}

/// The URL without its own ttl, which a flag overrides.
fn without_ttl(url: &str) -> String {
    let Some((start, query)) = url.split_once('?') else { return url.to_owned() };
    let kept: Vec<&str> = query.split('&').filter(|part| !part.starts_with("ttl=")).collect();
    if kept.is_empty() { start.to_owned() } else { format!("{start}?{}", kept.join("&")) }
}

/// A path as it stands in a URL.
fn escape(path: &Path) -> String {
    let mut text = String::new();
    for character in path.to_string_lossy().chars() {
        match character {
            '%' | '?' | '#' => text.push_str(&format!("%{:02X}", character as u32)),
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_replaces_the_ttl_of_the_url() {
        assert_eq!(without_ttl("etcd://h?ttl=5s&tls=off"), "etcd://h?tls=off");
        assert_eq!(without_ttl("etcd://h?ttl=5s"), "etcd://h");
        assert_eq!(without_ttl("etcd://h?tls=off"), "etcd://h?tls=off");
        assert_eq!(without_ttl("file:"), "file:");
    }

    #[test]
    fn a_relative_folder_becomes_absolute() {
        let folder = std::env::current_dir().unwrap();
        assert_eq!(absolute("file:a/b?ttl=2s"), format!("file:{}/a/b?ttl=2s", folder.display()));
        for url in ["file:", "file:/a", "file:~/a", "etcd://h/a", "memory:a"] {
            assert_eq!(absolute(url), url);
        }
    }

    #[test]
    fn a_path_survives_the_url() {
        assert_eq!(escape(Path::new("/a b/c?d%e")), "/a b/c%3Fd%25e");
    }
}
