//! The check at the protected resource: it remembers the highest token and refuses an older one.

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Authority, FencingToken};

/// A mark on a fence: a token, and who issued it. A writer shows its own; a fence stores the highest that it has seen.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct HighWater {
    /// Who issued the token.
    pub authority: Authority,
    /// The highest token so far.
    pub token: FencingToken,
}

/// A fence: what it has seen, and its one rule. Whoever guards a resource asks it before each write; a resource that outlives its
/// process stores the [`high_water`](Fence::high_water) as durably as itself.
///
/// ```
/// use incumbent_core::{Authority, Fence, FencingToken, HighWater};
///
/// let mark = |token| HighWater { authority: Authority::new("etcd 7f3a"), token: FencingToken(token) };
/// let mut fence = Fence::default();
/// assert!(fence.admit(&mark(17)).is_ok());
/// assert!(fence.admit(&mark(18)).is_ok(), "the successor raises it");
/// assert!(fence.admit(&mark(17)).is_err(), "its predecessor writes no more");
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Hash, Default)]
pub struct Fence {
    high_water: Option<HighWater>,
}

impl Fence {
    /// The fence of a resource beside which `stored` was found (`None`: it never saw a token).
    pub fn new(stored: Option<HighWater>) -> Fence {
        Fence { high_water: stored }
    }

    /// The highest token that it has seen, and who issued it.
    pub fn high_water(&self) -> Option<&HighWater> {
        self.high_water.as_ref()
    }

    /// Admits a write under `mark`, or refuses it. A new leader does the same without a write, before it starts to work: it
    /// *raises* the fence, and no late write of its predecessor lands from then on.
    ///
    /// # Errors
    /// As [`HighWater::admit`].
    pub fn admit(&mut self, mark: &HighWater) -> Result<Admission> {
        let admission = HighWater::admit(self.high_water.as_ref(), &mark.authority, mark.token)?;
        if admission == Admission::Raise {
            self.high_water = Some(mark.clone());
        }
        Ok(admission)
    }

    /// Accepts `mark` as the highest whatever was there, and returns what was: an operator's act, when an election has moved
    /// to another authority for good.
    pub fn adopt(&mut self, mark: HighWater) -> Option<HighWater> {
        self.high_water.replace(mark)
    }
}

/// What a fence does with a token that it admits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Admission {
    /// It is the highest token so far: nothing to store.
    Current,
    /// It is a higher one: store it, durably, before the write that it came with.
    Raise,
}

impl HighWater {
    /// Judges `token` of `authority` against what is stored (`None`: a fence that never saw a token).
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`]: the token is older than one seen, or another authority issued it. Tokens of two
    /// authorities cannot be compared; an operator who moves a resource from one to the other says so.
    pub fn admit(
        stored: Option<&HighWater>,
        authority: &Authority,
        token: FencingToken,
    ) -> Result<Admission> {
        let Some(stored) = stored else { return Ok(Admission::Raise) };
        if stored.authority != *authority {
            return Err(Error::new(
                ErrorKind::Fenced,
                format!(
                    "the fence knows tokens of authority {}, this one is of {authority}; if the election has moved there for good, an operator makes the fence adopt it: see `incumbent fence --help`",
                    stored.authority
                ),
            ));
        }
        match token.cmp(&stored.token) {
            core::cmp::Ordering::Less => Err(Error::new(
                ErrorKind::Fenced,
                format!(
                    "token {token} is older than {}, which this resource has seen: another leads",
                    stored.token
                ),
            )),
            core::cmp::Ordering::Equal => Ok(Admission::Current),
            core::cmp::Ordering::Greater => Ok(Admission::Raise),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(authority: &str, token: u64) -> HighWater {
        HighWater { authority: Authority::new(authority), token: FencingToken(token) }
    }

    #[test]
    fn an_older_token_is_refused_for_good() {
        let mut fence = Fence::default();
        assert_eq!(fence.admit(&mark("a", 3)), Ok(Admission::Raise));
        assert_eq!(fence.admit(&mark("a", 3)), Ok(Admission::Current));
        assert_eq!(fence.admit(&mark("a", 5)), Ok(Admission::Raise));
        for stale in [0, 3, 4] {
            let refused = fence.admit(&mark("a", stale)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
        }
        assert_eq!(fence.high_water(), Some(&mark("a", 5)), "a refused token changes nothing");
    }

    #[test]
    fn another_authority_is_refused_whatever_its_token_until_an_operator_adopts_it() {
        let mut fence = Fence::new(Some(mark("a", 5)));
        for token in [4, 5, 6, u64::MAX] {
            let refused = fence.admit(&mark("b", token)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Fenced);
            assert!(refused.to_string().contains("incumbent fence --help"), "{refused}");
        }
        assert_eq!(fence.adopt(mark("b", 2)), Some(mark("a", 5)));
        assert_eq!(fence.admit(&mark("b", 2)), Ok(Admission::Current));
        assert_eq!(fence.admit(&mark("b", 1)).unwrap_err().kind(), ErrorKind::Fenced);
        assert_eq!(fence.admit(&mark("a", 9)).unwrap_err().kind(), ErrorKind::Fenced);
    }
}
