//! What a program needs that is a peer: a state, made once, and a voter that stands for no election itself.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use incumbent_core::peers::Place;
use incumbent_core::peers::members::{Awaited, Change, Membership};
use incumbent_core::{Authority, CandidateId, Error, ErrorKind, Result, Settings};

use super::ask::Asker;
use super::config::{Config, member_name};
use super::node::Node;
use super::notes::nonce;
use super::state::{Folder, State};
use super::{join, roster, wire};
use crate::url::StoreUrl;

/// Makes the state of a new peer `name` of `cluster` in `dir`: once in a peer's life. Without it a peer does not start, and a
/// peer whose state is lost must not come back under its name: it may have promised its vote.
///
/// `cluster` names the peers together, the same at all of them. It is who issues their fencing tokens: use it for no other peers.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] if there is a state already, or a name breaks its rule; [`ErrorKind::ReadOnly`].
pub fn init(dir: &Path, name: &str, cluster: &str) -> Result<()> {
    make(dir, name, cluster, false)
}

/// Makes the state of a peer that is to be added to others which are there already: it takes part in nothing until a list names it.
///
/// # Errors
/// As [`init`].
pub fn init_to_join(dir: &Path, name: &str, cluster: &str) -> Result<()> {
    make(dir, name, cluster, true)
}

fn make(dir: &Path, name: &str, cluster: &str, joins: bool) -> Result<()> {
    let name = member_name(name)?;
    if member_name(cluster).is_err() {
        let text =
            format!("{cluster:?} is no name of a cluster; it keeps to the rule for names of elections");
        return Err(Error::new(ErrorKind::InvalidConfig, text));
    }
    let cluster = Authority::new(cluster);
    let membership = joins.then(|| Membership::new(cluster.clone(), name.clone(), roster::none()));
    let state = State {
        membership,
        cluster,
        name,
        nonce: nonce()?,
        known: Default::default(),
        elections: Default::default(),
    };
    Folder::init(dir, &state)
}

/// A peer that votes. It takes part until this is dropped.
pub struct Voter {
    config: Arc<Config>,
    node: Arc<Node>,
}

impl Voter {
    /// Starts the peer that `url` names, as in `raft://node-1?peers=…&state=DIR` (or `bully://`, `ring://`), on a thread of its own.
    ///
    /// # Errors
    /// What is wrong with the URL, the state or the address.
    pub async fn start(url: &str, mut settings: Settings) -> Result<Voter> {
        let url = StoreUrl::parse(url)?;
        if let Some(ttl) = url.ttl()? {
            settings.ttl = ttl;
        }
        let config = Arc::new(Config::new(&url, &settings)?);
        let node = join(&config).await?;
        Ok(Voter { config, node })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.node.address
    }

    /// The peers together: who issues their tokens.
    pub fn cluster(&self) -> &Authority {
        &self.node.cluster
    }

    /// Its name.
    pub fn name(&self) -> Option<&CandidateId> {
        self.config.name.as_ref()
    }

    /// How many peers there are, this one too.
    pub fn peers(&self) -> usize {
        self.config.roster.get().members.len()
    }
}

impl fmt::Debug for Voter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Voter").field("config", &self.config).finish_non_exhaustive()
    }
}

/// A list of peers, as it is in force.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Listing {
    /// Rises by one with each change.
    pub version: u64,
    /// As `peers=` says it.
    pub peers: String,
}

/// Adds the peer `name` at `address` (`HOST:PORT`) to the peers of `url`, one of which must be reached. `waits` is told what it
/// waits for. The list is then durable at a majority of itself and of the one before; `None`: another change was made at the same
/// time, and this one was not.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] if there is such a peer; [`ErrorKind::Unavailable`];
/// [`ErrorKind::TimedOut`], where the change may be made later.
pub async fn add(
    url: &str,
    settings: Settings,
    name: &str,
    address: &str,
    waits: impl FnMut(String),
) -> Result<Option<Listing>> {
    let name = member_name(name)?;
    let address = roster::address(&name, address)?.authority(0);
    change(url, settings, Change::Add(name, Place { priority: 1, address }), waits).await
}

/// Removes the peer `name`, as [`add`].
///
/// # Errors
/// [`ErrorKind::NotFound`] if there is no such peer, and as [`add`].
pub async fn remove(
    url: &str,
    settings: Settings,
    name: &str,
    waits: impl FnMut(String),
) -> Result<Option<Listing>> {
    change(url, settings, Change::Remove(member_name(name)?), waits).await
}

async fn change(
    url: &str,
    mut settings: Settings,
    change: Change,
    mut waits: impl FnMut(String),
) -> Result<Option<Listing>> {
    let url = StoreUrl::parse(url)?;
    if let Some(ttl) = url.ttl()? {
        settings.ttl = ttl;
    }
    let asker = Asker::new(Arc::new(Config::new(&url, &settings)?));
    let told = |awaited: &Awaited| {
        waits(match awaited {
            Awaited::Age => "until the list in force is old enough, a ttl after it was made".to_owned(),
            Awaited::Answers(got, needed) => {
                format!("for peers that have had the list for a ttl: {got} of {needed} have answered")
            }
            Awaited::Adoption(missing) => {
                let missing = missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                format!("until majorities have written the list; not yet: {missing}")
            }
        });
    };
    let made = asker.change(change, told).await?;
    Ok(made.map(|list| Listing { version: list.version, peers: roster::text(&list) }))
}

/// Reads `bytes` as everything that comes from a connection or a disk. Must neither panic nor take long, whatever they are. For
/// the tests that feed it anything.
#[doc(hidden)]
pub fn read_anything(bytes: &[u8]) {
    use incumbent_core::peers::{bully, raft, ring};
    let _ = wire::decode::<wire::Forth<raft::Message>>(bytes);
    let _ = wire::decode::<wire::Forth<bully::Message>>(bytes);
    let _ = wire::decode::<wire::Forth<ring::Message>>(bytes);
    let _ = wire::decode::<wire::Back>(bytes);
    let _ = super::handshake::is_greeting(bytes);
    let _ = super::state::is_state(bytes);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use incumbent_core::peers::raft::Message;
    use incumbent_core::peers::register::{Ask, Ballot, Entry, Reply};
    use incumbent_core::peers::{Envelope, Term};
    use incumbent_core::{Contender, ElectionName, Nonce, Note};

    use super::super::wire::{Answer, Back, Forth, Notice, Question, Register, Say, encode};
    use super::*;
    use crate::clock;

    /// Good frames and a good state, from which bad ones are made.
    fn samples() -> Vec<Vec<u8>> {
        let name = |name: &str| CandidateId::new(name).expect("a name");
        let election = ElectionName::new("billing").expect("a name");
        let contender = Contender { id: "pod-7".to_owned(), nonce: Some(Nonce(9)), address: None };
        let say = Say {
            election: election.clone(),
            notice: Some(Notice { contender, leads: Some((None, Some(7))) }),
            envelope: Envelope {
                cluster: Authority::new("prod"),
                list: 1,
                from: name("node-1"),
                to: name("node-2"),
                term: Term(7),
                message: Message::TimeoutNow,
            },
        };
        let register = Register::new(&election, Note::Checkpoint);
        let entry = Entry { version: 3, token: 7, body: vec![1; 300], writer: Nonce(1) };
        let ask = Ask::Accept(Ballot { round: 4, nonce: Nonce(5) }, Some(entry.clone()));
        let question = Question::Register(1, register, ask);
        let answer = Answer::Register(Reply::Holds((Ballot::ZERO, Some(entry))));
        let state = State {
            cluster: Authority::new("prod"),
            name: name("node-1"),
            nonce: Nonce(3),
            known: [(name("node-2"), Nonce(4))].into(),
            elections: Default::default(),
            membership: None,
        };
        vec![
            encode(&Forth::Say(say)).expect("a frame").to_vec(),
            encode(&Forth::<Message>::Ask { number: 1, question }).expect("a frame").to_vec(),
            encode(&Back::Answer { number: 1, answer: Ok(answer) }).expect("a frame").to_vec(),
            encode(&Back::Changed(election)).expect("a frame").to_vec(),
            state.encode().expect("a state"),
            b"INCPEER\x01\x01\x04prod\x00".to_vec(),
        ]
    }

    /// SplitMix64.
    fn draw(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    #[test]
    fn bytes_that_are_cut_changed_or_made_up_are_read_without_a_panic_and_soon() {
        let samples = samples();
        let mut seed = 0x5eed;
        let begin = clock::now();
        for round in 0..30_000 {
            let mut bytes = samples[round % samples.len()].clone();
            for _ in 0..draw(&mut seed) % 4 {
                let place = draw(&mut seed) as usize % bytes.len();
                match draw(&mut seed) % 4 {
                    0 => bytes.truncate(place.max(1)),
                    1 => bytes[place] = 0xff,
                    2 => bytes.insert(place, draw(&mut seed) as u8),
                    _ => bytes[place] ^= 1 << (draw(&mut seed) % 8),
                }
            }
            read_anything(&bytes);
            let length = draw(&mut seed) as usize % 200;
            let made_up: Vec<u8> = (0..length).map(|_| draw(&mut seed) as u8).collect();
            read_anything(&made_up);
        }
        // A length that is claimed and not there must not be waited or allocated for.
        assert!(clock::now().since(begin) < Duration::from_secs(60));
    }

    #[test]
    fn a_frame_is_read_as_it_was_written_and_not_with_anything_behind_it() {
        let frame = samples().remove(0);
        assert!(wire::decode::<Forth<Message>>(&frame).is_ok());
        let longer = [frame.as_slice(), &[0]].concat();
        assert!(wire::decode::<Forth<Message>>(&longer).is_err());
    }
}
