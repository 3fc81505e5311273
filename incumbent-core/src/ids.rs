//! Names and numbers with one meaning each: election, candidate, nonce, token, authority.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};

/// The longest election name and candidate id, in bytes.
pub const NAME_MAX: usize = 128;

/// The longest address that a candidate may advertise, in bytes.
pub const ADDRESS_MAX: usize = 512;
/// What [`check_address`] allows, in words.
pub const ADDRESS_RULE: &str = "an address is 1 to 512 bytes without spaces and control characters";

/// Checks an address that a candidate wants to advertise. Others show it on a line and hand it to their own tools.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] with the rule.
pub fn check_address(address: &str) -> Result<(), Error> {
    let unfit = |c: char| c.is_control() || c.is_whitespace();
    if !address.is_empty() && address.len() <= ADDRESS_MAX && !address.contains(unfit) {
        return Ok(());
    }
    let shown: String = address.chars().take(40).collect();
    let message = format!("invalid address to advertise {shown:?}: {ADDRESS_RULE}");
    Err(Error::new(ErrorKind::InvalidConfig, message))
}

/// The name of an election: 1–128 of `[A-Za-z0-9._-]`, the first a letter or digit.
///
/// The same name is the store's key, so that other tools can share the election. It is never escaped or hashed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ElectionName(String);

impl ElectionName {
    /// What a name may be, in words.
    pub const RULE: &str = "a name is 1 to 128 of A-Z a-z 0-9 . _ - and starts with a letter or digit";

    /// Checks `name` against the rule.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] with the rule and the first offence.
    pub fn new(name: impl Into<String>) -> Result<ElectionName, Error> {
        let name = name.into();
        let offence = match name.bytes().next() {
            None => Some("it is empty".to_owned()),
            Some(first) if !first.is_ascii_alphanumeric() => {
                Some(format!("it starts with {:?}", name.chars().next().unwrap_or_default()))
            }
            Some(_) if name.len() > NAME_MAX => Some(format!("it has {} bytes", name.len())),
            Some(_) => name
                .chars()
                .find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')))
                .map(|c| format!("it contains {c:?}")),
        };
        match offence {
            None => Ok(ElectionName(name)),
            Some(offence) => {
                let shown: String = name.chars().take(40).collect();
                Err(Error::new(
                    ErrorKind::InvalidName,
                    format!("invalid election name {shown:?}: {offence}; {}", ElectionName::RULE),
                ))
            }
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ElectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ElectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl FromStr for ElectionName {
    type Err = Error;
    fn from_str(name: &str) -> Result<ElectionName, Error> {
        ElectionName::new(name)
    }
}

impl<'de> Deserialize<'de> for ElectionName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<ElectionName, D::Error> {
        ElectionName::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// The name of a candidate, for people: a Pod, a host with a process id. Not an identity by itself, see [`Nonce`].
///
/// 1–128 bytes of printable UTF-8 without control characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct CandidateId(String);

impl CandidateId {
    /// What an id may be, in words.
    pub const RULE: &str = "an id is 1 to 128 bytes without control characters";

    /// Checks `id` against the rule.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`].
    pub fn new(id: impl Into<String>) -> Result<CandidateId, Error> {
        let id = id.into();
        if id.is_empty() || id.len() > NAME_MAX || id.chars().any(char::is_control) {
            let shown: String = id.chars().take(40).collect();
            return Err(Error::new(
                ErrorKind::InvalidName,
                format!("invalid candidate id {shown:?}: {}", CandidateId::RULE),
            ));
        }
        Ok(CandidateId(id))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CandidateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for CandidateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl FromStr for CandidateId {
    type Err = Error;
    fn from_str(id: &str) -> Result<CandidateId, Error> {
        CandidateId::new(id)
    }
}

impl<'de> Deserialize<'de> for CandidateId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<CandidateId, D::Error> {
        CandidateId::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// 128 random bits, drawn anew for each campaign: with the [`CandidateId`] it identifies one attempt to win one term.
///
/// Written as 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub u128);

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for Nonce {
    type Err = Error;
    fn from_str(hex: &str) -> Result<Nonce, Error> {
        match u128::from_str_radix(hex, 16) {
            Ok(bits) if hex.len() == 32 && hex.bytes().all(|b| b.is_ascii_hexdigit()) => Ok(Nonce(bits)),
            _ => Err(Error::new(ErrorKind::InvalidName, "a nonce is 32 hexadecimal digits".to_owned())),
        }
    }
}

impl Serialize for Nonce {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Nonce {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Nonce, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A number that is strictly greater in each later term of the same election, as far as the backend's
/// [`Guarantees`](crate::Guarantees) say. Hand it to every resource that can compare it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FencingToken(pub u64);

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who issues the tokens of an election: two tokens are comparable only if their authorities are equal.
///
/// A backend derives it from what identifies its store (an etcd cluster id with the prefix, a state directory's
/// id), never from an address.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Authority(String);

impl Authority {
    /// An authority from its stable identity.
    pub fn new(identity: impl Into<String>) -> Authority {
        Authority(identity.into())
    }

    /// The identity as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
