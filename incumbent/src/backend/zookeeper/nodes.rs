//! What stands in ZooKeeper: the names of nodes.
//!
//! A candidate's node is `/<prefix>/<election>/<nonce in hex>__lock__<10 digits>`, as kazoo names it. The server puts the digits
//! there, which count what was ever created under the election's node; as long as a candidate is there, that node cannot be
//! deleted and the count not begin anew, so that among live candidates the order of the digits is the order of their czxids.
//! Nothing but candidates stands under `/<prefix>/<election>`; everything else is under `/<prefix>/.incumbent`, which no election
//! name can reach, since it does not begin with a dot.

use incumbent_core::{ElectionName, Nonce, Note, Result};

use crate::url::bad;

/// What stands between the part of a name that is drawn and the part that counts, for kazoo.
const LOCK: &str = "__lock__";
/// The fewest digits behind it.
const DIGITS: usize = 10;

/// The names of all nodes under one prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Nodes {
    /// Empty, or with a slash in front and none behind.
    root: String,
}

/// A candidate by its node's name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Child {
    pub(super) place: u64,
    pub(super) name: String,
}

impl Child {
    /// True if a campaign with this nonce has created it.
    pub(super) fn is_of(&self, nonce: Nonce) -> bool {
        self.name.strip_prefix(&nonce.to_string()).is_some_and(|rest| rest.starts_with(LOCK))
    }
}

impl Nodes {
    /// `prefix` is the path of the URL.
    ///
    /// # Errors
    /// ZooKeeper can have no such path.
    pub(super) fn new(prefix: &str) -> Result<Nodes> {
        let prefix = prefix.trim_matches('/');
        if prefix.is_empty() {
            return Ok(Nodes { root: String::new() });
        }
        let wrong = |part: &str| part.is_empty() || part == "." || part == "..";
        if prefix.split('/').any(wrong) || prefix.chars().any(char::is_control) {
            return Err(bad(
                "zookeeper: the prefix can hold no empty part, no . or .. and no control character",
            ));
        }
        Ok(Nodes { root: format!("/{prefix}") })
    }

    /// Without the slash in front.
    pub(super) fn prefix(&self) -> &str {
        self.root.trim_start_matches('/')
    }

    /// The node under which an election's candidates stand.
    ///
    /// # Errors
    /// ZooKeeper keeps that name for itself.
    pub(super) fn election(&self, election: &ElectionName) -> Result<String> {
        if self.root.is_empty() && election.as_str() == "zookeeper" {
            return Err(incumbent_core::Error::new(
                incumbent_core::ErrorKind::InvalidName,
                "an election without a prefix cannot be called zookeeper, which is where ZooKeeper keeps its own nodes; put a prefix into the URL",
            ));
        }
        Ok(format!("{}/{election}", self.root))
    }

    /// What the server is given to create a candidate's node.
    pub(super) fn candidate(dir: &str, nonce: Nonce) -> String {
        format!("{dir}/{nonce}{LOCK}")
    }

    /// A node that never exists: to delete it goes the way of a write and changes nothing.
    pub(super) fn nil(&self) -> String {
        format!("{}/.incumbent/nil", self.root)
    }

    /// The node that holds what identifies this tree.
    pub(super) fn authority(&self) -> String {
        format!("{}/.incumbent/authority", self.root)
    }

    /// The node of a note.
    pub(super) fn note(&self, election: &ElectionName, note: Note) -> String {
        let kind = match note {
            Note::Checkpoint => "checkpoint",
            Note::Handover => "handover",
        };
        format!("{}/.incumbent/{kind}/{election}", self.root)
    }
}

/// The node above.
pub(super) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// The candidates among the children of an election's node, in their order. What is none is passed over, as kazoo does.
pub(super) fn queue(children: Vec<String>) -> Vec<Child> {
    let child = |name: String| {
        let (_, digits) = name.rsplit_once(LOCK)?;
        let counts = digits.len() >= DIGITS && digits.bytes().all(|digit| digit.is_ascii_digit());
        Some(Child { place: counts.then(|| digits.parse().ok())??, name })
    };
    let mut queue: Vec<Child> = children.into_iter().filter_map(child).collect();
    queue.sort();
    queue
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_election_shares_its_place_with_other_clients() {
        let election = ElectionName::new("billing").expect("a name");
        for (path, root) in [("", ""), ("team/a", "/team/a"), ("team/a/", "/team/a")] {
            let nodes = Nodes::new(path).expect("a prefix");
            let dir = nodes.election(&election).expect("a name");
            assert_eq!(dir, format!("{root}/billing"));
            assert_eq!(Nodes::candidate(&dir, Nonce(15)), format!("{root}/billing/{:032x}__lock__", 15));
            assert_eq!(nodes.note(&election, Note::Handover), format!("{root}/.incumbent/handover/billing"));
        }
        assert!(Nodes::new("a//b").is_err() && Nodes::new("a/../b").is_err());
    }

    #[test]
    fn the_name_that_zookeeper_keeps_for_itself_needs_a_prefix() {
        let election = ElectionName::new("zookeeper").expect("a name");
        assert!(Nodes::new("").expect("a prefix").election(&election).is_err());
        assert!(Nodes::new("team").expect("a prefix").election(&election).is_ok());
    }

    #[test]
    fn candidates_stand_in_the_order_of_their_digits_and_nothing_else_does() {
        let names = ["b__lock__0000000010", "z__lock__0000000002", "a__rlock__0000000001", "lease_holder"];
        let more = ["c__lock__9", "d__lock__00000000x1", "__lock__0000000003"];
        let queue = queue(names.iter().chain(&more).map(|name| (*name).to_owned()).collect());
        let places: Vec<u64> = queue.iter().map(|child| child.place).collect();
        assert_eq!(places, [2, 3, 10]);
    }

    #[test]
    fn a_campaign_knows_its_own() {
        let child = Child { place: 1, name: format!("{:032x}__lock__0000000001", 15) };
        assert!(child.is_of(Nonce(15)) && !child.is_of(Nonce(1)));
    }
}
