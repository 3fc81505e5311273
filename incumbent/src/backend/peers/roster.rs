//! The list of peers in force: at first the URL's, then whatever was decided since and stands in the state.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, PoisonError, RwLock};

use incumbent_core::peers::{List, Place};
use incumbent_core::{CandidateId, Error, ErrorKind, Result};

use crate::url::{Host, parse_host};

/// A list, with the addresses understood.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) list: List,
    pub(super) members: BTreeMap<CandidateId, Host>,
    /// Where those were that the list before had besides: they are told of this one.
    removed: BTreeMap<CandidateId, Host>,
}

impl Listed {
    pub(super) fn host(&self, name: &CandidateId) -> Option<&Host> {
        self.members.get(name).or_else(|| self.removed.get(name))
    }

    /// All but `me` that are spoken with.
    pub(super) fn others(&self, me: &CandidateId) -> Vec<CandidateId> {
        self.members.keys().chain(self.removed.keys()).filter(|name| *name != me).cloned().collect()
    }
}

/// Shared by all that speak for one peer, or ask for one program.
#[derive(Debug)]
pub(super) struct Roster(RwLock<Arc<Listed>>);

impl Roster {
    pub(super) fn of_url(members: &BTreeMap<CandidateId, Host>) -> Roster {
        let list = first(members);
        Roster(RwLock::new(Arc::new(Listed { list, members: members.clone(), removed: BTreeMap::new() })))
    }

    pub(super) fn get(&self) -> Arc<Listed> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts `list` in force.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if an address in it cannot be understood.
    pub(super) fn set(&self, list: &List) -> Result<()> {
        let mut members = BTreeMap::new();
        for (name, place) in &list.members {
            members.insert(name.clone(), address(name, &place.address)?);
        }
        let mut listed = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let former = listed.members.iter().filter(|(name, _)| !members.contains_key(*name));
        let removed = former.map(|(name, host)| (name.clone(), host.clone())).collect();
        *listed = Arc::new(Listed { list: list.clone(), members, removed });
        Ok(())
    }
}

/// The list with which a cluster begins: what all URLs say.
pub(super) fn first(members: &BTreeMap<CandidateId, Host>) -> List {
    let place = |host: &Host| Place { priority: 1, address: host.authority(0) };
    let members = members.iter().map(|(name, host)| (name.clone(), place(host))).collect();
    List { members, ..List::new(1, []) }
}

impl Roster {
    /// There is no list yet: the peers of the URL are only asked.
    pub(super) fn clear(&self) {
        let mut listed = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let Listed { members, removed, .. } = &**listed;
        *listed = Arc::new(Listed { list: none(), members: members.clone(), removed: removed.clone() });
    }
}

/// The list of a peer that is to be added: none.
pub(super) fn none() -> List {
    List::new(0, [])
}

pub(super) fn address(name: &CandidateId, address: &str) -> Result<Host> {
    match parse_host(address) {
        Ok(host) if host.port.is_some() => Ok(host),
        _ => {
            let text = format!("{address:?}, the address of {name}, is no HOST:PORT");
            Err(Error::new(ErrorKind::InvalidConfig, text))
        }
    }
}

/// As `peers=` says it.
pub(super) fn text(list: &List) -> String {
    let mut text = String::new();
    for (place, (name, member)) in list.members.iter().enumerate() {
        let comma = if place == 0 { "" } else { "," };
        let _ = write!(text, "{comma}{name}={}", member.address);
    }
    text
}
