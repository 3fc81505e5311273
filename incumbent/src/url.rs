//! One URL form for all backends: `scheme://[user[:pw]@]h1[:p],h2[:p]/prefix?key=value&…`, or `scheme:[path]`.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use incumbent_core::{Error, ErrorKind, Result};
use percent_encoding::percent_decode_str;

/// A parsed backend URL. Never shows the password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StoreUrl {
    pub(crate) scheme: String,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) hosts: Vec<Host>,
    /// With hosts: what follows the first slash. Without: the path.
    pub(crate) path: String,
    parameters: Vec<(String, String)>,
}

/// A host with its port, if one was given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) port: Option<u16>,
}

#[cfg(any(feature = "tls", test))]
impl Host {
    /// True for an address that cannot leave this machine.
    pub(crate) fn is_loopback(&self) -> bool {
        self.name == "localhost" || self.name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// `name:port`, IPv6 in brackets.
    pub(crate) fn authority(&self, default_port: u16) -> String {
        let port = self.port.unwrap_or(default_port);
        if self.name.contains(':') {
            format!("[{}]:{port}", self.name)
        } else {
            format!("{}:{port}", self.name)
        }
    }
}

impl StoreUrl {
    pub(crate) fn parse(url: &str) -> Result<StoreUrl> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(bad(
                "the backend URL has no scheme; write for example etcd://127.0.0.1:2379 or file:",
            ));
        };
        let hosts = rest.strip_prefix("//").unwrap_or("");
        let hosts_end = url.len() - hosts.len() + hosts.find(['/', '?']).unwrap_or(hosts.len());
        if !hosts.starts_with(['/', '?']) && cut_login(url, hosts_end).is_some() {
            // Nothing of it is repeated: it may be a part of a password.
            return Err(bad(
                "the backend URL has an @ behind a / or ?; in a user, a password or a prefix write %2F for /, %3F for ? and %40 for @",
            ));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let parameters: Vec<(String, String)> = url::form_urlencoded::parse(query.as_bytes())
            .map(|(k, v)| (k.into_owned(), v.into_owned()))
            .collect();
        for (index, (name, _)) in parameters.iter().enumerate() {
            if parameters[..index].iter().any(|(earlier, _)| earlier == name) {
                return Err(bad(format!("the parameter {name} stands twice in the backend URL")));
            }
        }
        let scheme = scheme.to_ascii_lowercase();
        let Some(rest) = rest.strip_prefix("//") else {
            let path = decode(rest)?;
            return Ok(StoreUrl { scheme, user: None, password: None, hosts: Vec::new(), path, parameters });
        };
        let (authority, mut path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.is_empty() {
            // As in file:///PATH: an empty host, and a path that begins with the slash.
            path = rest;
        }
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let (user, password) =
            match login.map(|login| login.split_once(':').map_or((login, None), |(u, p)| (u, Some(p)))) {
                Some((user, password)) => (Some(decode(user)?), password.map(decode).transpose()?),
                None => (None, None),
            };
        let hosts =
            hosts.split(',').filter(|host| !host.is_empty()).map(parse_host).collect::<Result<_>>()?;
        Ok(StoreUrl { scheme, user, password, hosts, path: decode(path)?, parameters })
    }

    /// The value of a parameter.
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Refuses parameters that nobody knows, with the nearest that somebody does.
    pub(crate) fn only(&self, known: &[&str]) -> Result<()> {
        let all = || known.iter().chain(&COMMON).copied();
        for (name, _) in &self.parameters {
            if !all().any(|known| known == name) {
                let hint = match nearest(name, all()) {
                    Some(nearest) => format!("did you mean {nearest}?"),
                    None => format!("known are {}", all().collect::<Vec<_>>().join(", ")),
                };
                return Err(bad(format!("{}: has no parameter {name}; {hint}", self.scheme)));
            }
        }
        Ok(())
    }

    /// The lease duration that the URL asks for.
    pub(crate) fn ttl(&self) -> Result<Option<Duration>> {
        self.parameter("ttl").map(parse_duration).transpose()
    }

    /// The password: from the URL, or from the file that it names.
    #[cfg(any(feature = "tls", test))]
    pub(crate) fn secret(&self) -> Result<Option<String>> {
        let Some(path) = self.parameter("password_file") else { return Ok(self.password.clone()) };
        if self.password.is_some() {
            return Err(bad("the backend URL has a password and a password_file=; leave one out"));
        }
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned())),
            Err(error) => Err(bad(format!("the password file {path} cannot be read")).with_source(error)),
        }
    }
}

/// A backend URL as it may be shown: with `***` in place of a password or an access token.
#[must_use]
pub fn redact(url: &str) -> Cow<'_, str> {
    let shown = without_password(url);
    match without_token(&shown) {
        Some(shown) => Cow::Owned(shown),
        None => shown,
    }
}

/// What was most likely meant by `typed`, if anything of `known` was.
pub(crate) fn nearest<'a>(typed: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|known| (strsim::damerau_levenshtein(typed, known), known))
        .filter(|(distance, _)| *distance <= 3.min(typed.len() / 2))
        .min()
        .map(|(_, known)| known)
}

/// The value of each parameter that is a secret in itself is taken out.
fn without_token(url: &str) -> Option<String> {
    let (front, query) = url.split_once('?')?;
    let is_secret = |part: &&str| part.split_once('=').is_some_and(|(name, _)| is_secret(name));
    query.split('&').find(is_secret)?;
    let parts: Vec<String> = query
        .split('&')
        .map(|part| match part.split_once('=') {
            Some((name, _)) if is_secret(&part) => format!("{name}=***"),
            _ => part.to_owned(),
        })
        .collect();
    Some(format!("{front}?{}", parts.join("&")))
}

/// Whether the value of the parameter `name` is a secret.
fn is_secret(name: &str) -> bool {
    name.eq_ignore_ascii_case("token")
}

fn without_password(url: &str) -> Cow<'_, str> {
    let (scheme, behind) = url.split_once(':').unwrap_or(("", url));
    if matches!(scheme.to_ascii_lowercase().as_str(), "file" | "memory") {
        return Cow::Borrowed(url);
    }
    // Slashes too few or too many are refused, but may be shown in what tells of that.
    let start = url.len() - behind.trim_start_matches('/').len();
    let end = url[start..].find(['/', '?']).map_or(url.len(), |at| start + at);
    let login = cut_login(url, end).or_else(|| url[start..end].rfind('@').map(|at| start + at));
    let Some(login) = login else {
        // What stands for a port and is none is most likely a password without its host.
        let mut hosts = url[start..end].split(',');
        return match hosts.find_map(|host| {
            host.split_once(':').filter(|(name, port)| !name.starts_with('[') && !is_port(port))
        }) {
            Some((_, port)) => Cow::Owned(url.replace(port, "***")),
            None => Cow::Borrowed(url),
        };
    };
    match url[start..login].find(':').map(|at| start + at + 1) {
        Some(password) => Cow::Owned(format!("{}***{}", &url[..password], &url[login..])),
        // As in user:password@host, without a scheme.
        None if !behind.starts_with("//") => Cow::Owned(format!("{}***{}", &url[..start], &url[login..])),
        None => Cow::Borrowed(url),
    }
}

fn is_port(text: &str) -> bool {
    text.is_empty() || text.parse::<u16>().is_ok_and(|port| port != 0)
}

/// Where an `@` stands in the prefix or in a parameter's name, behind the hosts, which reach to `end`: then most likely a password
/// holds a `/` or `?`, which ended them too early.
fn cut_login(url: &str, end: usize) -> Option<usize> {
    let (prefix, query) = url[end..].split_once('?').unwrap_or((&url[end..], ""));
    let mut at = prefix.rfind('@').map(|at| end + at);
    let mut part_start = end + prefix.len() + 1;
    for part in query.split('&') {
        let name = part.split('=').next().unwrap_or(part);
        at = name.rfind('@').map(|found| part_start + found).or(at);
        part_start += part.len() + 1;
    }
    at
}

/// Parameters of every backend.
const COMMON: [&str; 1] = ["ttl"];

/// Parameters of every backend that stands on a server.
#[cfg(any(feature = "tls", test))]
pub(crate) const SERVER: [&str; 6] = ["tls", "ca", "cert", "key", "server_name", "password_file"];

/// A duration as people write it: `15s`, `1500ms`, `2m`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let millis = match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    match (number.parse::<u64>().ok(), millis) {
        (Some(number), Some(unit)) if number.checked_mul(unit).is_some() => {
            Ok(Duration::from_millis(number * unit))
        }
        _ => Err(bad(format!("{text:?} is no duration; write a whole number with ms, s, m or h, as in 15s"))),
    }
}

pub(crate) fn parse_host(text: &str) -> Result<Host> {
    // What stands behind the colon may be a password that lacks its host: it is not repeated.
    let shown = text.split(':').next().unwrap_or(text);
    let wrong = || {
        bad(format!(
            "{shown:?} in the backend URL is no host or host:port with a port of 1 to 65535; a user goes before an @, as in user@host"
        ))
    };
    let (name, port) = if let Some(rest) = text.strip_prefix('[') {
        let (name, rest) = rest.split_once(']').ok_or_else(wrong)?;
        (
            name,
            rest.strip_prefix(':')
                .map_or(if rest.is_empty() { Ok(None) } else { Err(wrong()) }, |p| Ok(Some(p)))?,
        )
    } else {
        match text.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        }
    };
    let port = port.map(|port| port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)).transpose()?;
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(wrong());
    }
    Ok(Host { name: name.to_owned(), port })
}

fn decode(text: &str) -> Result<String> {
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(bad("the backend URL is not UTF-8 after percent-decoding")),
    }
}

pub(crate) fn bad(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, message)
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |(name, value): &(String, String)| {
            (name.clone(), if is_secret(name) { "***".to_owned() } else { value.clone() })
        };
        let shown: Vec<(String, String)> = self.parameters.iter().map(shown).collect();
        f.debug_struct("StoreUrl")
            .field("scheme", &self.scheme)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("hosts", &self.hosts)
            .field("path", &self.path)
            .field("parameters", &shown)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_part() {
        let url = StoreUrl::parse("etcd://us%40er:p%3Aw@h1:1,[::1]:2,h3/a/b?ttl=2s&tls=off").unwrap();
        assert_eq!(url.user.as_deref(), Some("us@er"));
        assert_eq!(url.secret().unwrap().as_deref(), Some("p:w"));
        let hosts: Vec<String> = url.hosts.iter().map(|host| host.authority(2379)).collect();
        assert_eq!(hosts, ["h1:1", "[::1]:2", "h3:2379"]);
        assert!(url.hosts[1].is_loopback() && !url.hosts[0].is_loopback());
        assert_eq!(url.path, "a/b");
        assert_eq!(url.ttl().unwrap(), Some(Duration::from_secs(2)));
    }

    #[test]
    fn a_password_without_its_host_is_not_shown() {
        for url in ["etcd://u:hunter2", "etcd://h:1,u:hunter2/p?tls=off"] {
            assert!(!StoreUrl::parse(url).unwrap_err().to_string().contains("hunter2"), "{url}");
            assert!(!redact(url).contains("hunter2"), "{url}");
        }
        assert_eq!(redact("etcd://h:2379,[::1]:2379/p"), "etcd://h:2379,[::1]:2379/p");
    }

    #[test]
    fn two_sources_of_the_password_are_refused() {
        let url = StoreUrl::parse("etcd://u:hunter2@h?password_file=/nowhere").unwrap();
        let error = url.secret().unwrap_err().to_string();
        assert!(error.contains("leave one out") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn a_path_needs_no_host() {
        let url = StoreUrl::parse("file:/tmp/with%20space?ttl=500ms").unwrap();
        assert_eq!((url.path.as_str(), url.hosts.len()), ("/tmp/with space", 0));
        assert_eq!(StoreUrl::parse("file:").unwrap().path, "");
        assert_eq!(StoreUrl::parse("file:///tmp/x").unwrap().path, "/tmp/x");
    }

    #[test]
    fn a_password_is_never_shown() {
        let url = StoreUrl::parse("etcd://u:hunter2@h").unwrap();
        assert!(!format!("{url:?}").contains("hunter2"));
    }

    #[test]
    fn a_shown_url_has_no_password() {
        assert_eq!(redact("etcd://u:hunter2@h1,h2/p?tls=off"), "etcd://u:***@h1,h2/p?tls=off");
        assert_eq!(redact("etcd://u:p@ss@h"), "etcd://u:***@h");
        assert_eq!(redact("etcd://u:p:w@h?a=b@c"), "etcd://u:***@h?a=b@c");
        for url in ["etcd://u@h:1", "etcd://h:1/a:b", "file:/a:b@c", "file:///a:b@c", "memory:"] {
            assert_eq!(redact(url), url);
        }
    }

    #[test]
    fn a_token_is_never_shown() {
        let url = "consul://h/p?ttl=2s&token=hunter2&tls=off";
        assert_eq!(redact(url), "consul://h/p?ttl=2s&token=***&tls=off");
        assert!(!format!("{:?}", StoreUrl::parse(url).unwrap()).contains("hunter2"));
        assert_eq!(redact("consul://h?token_file=/t"), "consul://h?token_file=/t");
    }

    #[test]
    fn a_password_that_ends_the_hosts_too_early_is_refused_and_not_shown() {
        for url in [
            "etcd://u:12/hunter@h",
            "etcd://u:12?hunter@h",
            "etcd://u:12?hunter@h:1/p?ttl=3s",
            "etcd://u:12/hunter?x@h",
            "etcd://u:12@3/hunter@h",
            "etcd://u:12?a=b&hunter@h?tls=off",
        ] {
            let error = StoreUrl::parse(url).unwrap_err().to_string();
            assert!(error.contains("%2F") && !error.contains("12") && !error.contains("hunter"), "{error}");
            let shown = redact(url);
            assert!(
                !shown.contains("12") && !shown.contains("hunter") && shown.contains("u:***@h"),
                "{shown}"
            );
        }
        for url in ["etcd://h/p%40q", "etcd://u:p%2Fw%3F@h/p?password_file=/a@b", "file:///a@b/c", "file:a@b"]
        {
            assert!(StoreUrl::parse(url).is_ok(), "{url}");
        }
    }

    #[test]
    fn unknown_parameters_get_a_suggestion() {
        let url = StoreUrl::parse("etcd://h?tttl=2s").unwrap();
        assert!(url.only(&SERVER).unwrap_err().to_string().contains("did you mean ttl?"));
        let url = StoreUrl::parse("etcd://h?foo=1").unwrap();
        assert!(url.only(&SERVER).unwrap_err().to_string().contains("known are"));
        let url = StoreUrl::parse("etcd://h?something=2s").unwrap();
        assert!(url.only(&SERVER).unwrap_err().to_string().contains("known are tls, ca"));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in
            ["etcd", "etcd://h:0", "etcd://h:port", "etcd://[::1", "etcd://h?ttl=1s&ttl=2s", "etcd://%ff@h"]
        {
            assert!(StoreUrl::parse(text).is_err(), "{text}");
        }
        for text in ["", "5", "s", "-1s", "1.5s", "99999999999999999999s", "1d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
