//! A fence in etcd: one key, compared in the transaction that writes what it protects.
//!
//! For data that lies in etcd, be it the cluster that holds the election or another. The client is yours; the library brings the
//! key's value and the rule.
//!
//! A new leader raises the fence before it reads anything that it will build on: it reads the key, asks [`EtcdFence::judge`], and on
//! [`Admission::Raise`] puts [`EtcdFence::value`] in a transaction that compares the key's mod revision with the one that it read (0
//! if there was none); if that has changed it begins anew. From then on each write is a transaction that compares the key's value:
//!
//! ```text
//! if    value(fence.key()) = EtcdFence::value(&mark)
//! then  put …                     what it writes
//! else  get fence.key()           for EtcdFence::judge, which says why not
//! ```
//!
//! Writes of one leader do not wait for each other, and none of an earlier one lands after the raise.
//!
//! ```
//! use incumbent::fence::etcd::EtcdFence;
//! use incumbent::{Admission, Authority, FencingToken, HighWater};
//!
//! let mark = |token| HighWater { authority: Authority::new("etcd:7f3a:billing/"), token: FencingToken(token) };
//! assert_eq!(EtcdFence::value(&mark(17)), "v1 17 etcd:7f3a:billing/");
//! assert_eq!(EtcdFence::judge(None, &mark(17))?, Admission::Raise);
//! assert!(EtcdFence::judge(Some(b"v1 18 etcd:7f3a:billing/"), &mark(17)).is_err(), "another leads");
//! # Ok::<(), incumbent::Error>(())
//! ```

use incumbent_core::{Admission, Authority, Error, ErrorKind, Fence, FencingToken, HighWater, Result};

/// The fence under one key, in the etcd that holds what it protects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdFence {
    key: String,
}

impl EtcdFence {
    /// The fence under `key`.
    pub fn new(key: impl Into<String>) -> EtcdFence {
        EtcdFence { key: key.into() }
    }

    /// Its key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// What the key holds once `mark` has raised the fence: `v1 TOKEN AUTHORITY`.
    pub fn value(mark: &HighWater) -> String {
        format!("v1 {} {}", mark.token, mark.authority)
    }

    /// Judges `mark` by what the key holds (`None`: there is no key).
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] if another leads, or another authority issued the token; [`ErrorKind::Corrupt`] if the value cannot be
    /// understood, or a newer release wrote it.
    pub fn judge(stored: Option<&[u8]>, mark: &HighWater) -> Result<Admission> {
        Fence::new(stored.map(decode).transpose()?).admit(mark)
    }

    /// The operator's act when an election has moved to another authority for good, as a command for a shell in which `etcdctl`
    /// finds the cluster: from then on tokens of the old authority are refused.
    pub fn adopt_text(&self, mark: &HighWater) -> String {
        let quoted = |word: &str| format!("'{}'", word.replace('\'', r"'\''"));
        format!("etcdctl put -- {} {}", quoted(&self.key), quoted(&EtcdFence::value(mark)))
    }
}

fn decode(bytes: &[u8]) -> Result<HighWater> {
    let corrupt = |what: &str| Error::new(ErrorKind::Corrupt, format!("the fence's key {what}"));
    let text = std::str::from_utf8(bytes).map_err(|_| corrupt("does not hold a fence's mark"))?;
    let (format, rest) = text.split_once(' ').ok_or_else(|| corrupt("does not hold a fence's mark"))?;
    if format != "v1" {
        let number = format.strip_prefix('v').is_some_and(|number| number.parse::<u32>().is_ok());
        return Err(corrupt(if number {
            "was written by a newer release; update this program"
        } else {
            "does not hold a fence's mark"
        }));
    }
    let mark = rest.split_once(' ').and_then(|(token, authority)| {
        Some(HighWater { authority: Authority::new(authority), token: FencingToken(token.parse().ok()?) })
    });
    mark.ok_or_else(|| corrupt("does not hold a fence's mark"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(authority: &str, token: u64) -> HighWater {
        HighWater { authority: Authority::new(authority), token: FencingToken(token) }
    }

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        for mark in [mark("etcd:7f3a:my prefix/", u64::MAX), mark("", 0)] {
            assert_eq!(decode(EtcdFence::value(&mark).as_bytes()).unwrap(), mark);
        }
    }

    #[test]
    fn what_cannot_be_understood_admits_nobody() {
        for stored in [&b""[..], b"garbage", b"v1", b"v1 17", b"v1 x a", b"v1 -1 a", b"v2 17 a", b"\xff v1"] {
            let error = EtcdFence::judge(Some(stored), &mark("a", 99)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert_eq!(error.to_string().contains("newer release"), stored.starts_with(b"v2"), "{error}");
        }
    }
}
