//! This peer: one thread with its own runtime, one listener, one link to each other peer, one seat per election.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use incumbent_core::peers::members::{self, Members};
use incumbent_core::peers::register::{Change, Outcome};
use incumbent_core::peers::{Config as Rules, Envelope, List, Protocol};
use incumbent_core::{
    Acquired, Authority, BootInstant, CandidateId, Claim, ElectionName, Error, ErrorKind, Grant, Nonce,
    Renewed, Result,
};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use super::config::Config;
use super::data;
use super::disk::{self, Disk, Written};
use super::handshake::{Badge, Membership, Own};
use super::known::Known;
use super::link::{Link, State as LinkState};
use super::listen::{Desk, Lines};
use super::membership::Changing;
use super::notes::{Notes, nonce};
use super::roster;
use super::seat::{Act, Around, Seat, silent_from};
use super::state::{ELECTIONS_MAX, Folder, State};
use super::wire::{self, Forth, Notice, Register, Say};
use crate::backend::signals::Signals;
use crate::clock;

/// What others tell the node.
pub(super) enum Input<M> {
    /// And a way to have the connection cut that it came by.
    Said(Say<M>, mpsc::Sender<String>),
    Look(ElectionName, oneshot::Sender<Option<Notice>>),
    /// The version of this peer's data.
    Data(u64),
    List(Envelope<members::Message>),
    TellList(oneshot::Sender<(List, Option<members::Awaited>)>),
    Propose(u64, members::Change, oneshot::Sender<Result<Option<List>>>),
}

/// What the backend asks of the node.
pub(super) enum Call {
    Acquire(Claim, oneshot::Sender<Result<Acquired>>),
    Renew(Claim, Grant, oneshot::Sender<Result<Renewed>>),
    Release(ElectionName, Nonce, Option<CandidateId>, oneshot::Sender<Result<()>>),
    Note(Register, Change, oneshot::Sender<Result<Outcome>>),
    Advice(oneshot::Sender<Result<Vec<String>>>),
}

/// Makes what a protocol is told of what a URL says.
type Make<P> = fn(&Config, Rules) -> <P as Protocol>::Config;

/// A peer that has joined. It ends when the last of these is dropped.
pub(super) struct Node {
    calls: mpsc::UnboundedSender<Call>,
    pub(super) signals: Arc<Signals>,
    pub(super) cluster: Authority,
    pub(super) address: SocketAddr,
    told: String,
    name: CandidateId,
}

impl Node {
    /// The peer of this state, which this process starts unless it has done so already.
    ///
    /// # Errors
    /// What is wrong with the state, the address or the configuration.
    pub(super) async fn join<P: Protocol>(config: Arc<Config>, make: Make<P>) -> Result<Arc<Node>> {
        /// The peers of this process, by their folders.
        static NODES: OnceLock<Mutex<BTreeMap<PathBuf, Weak<Node>>>> = OnceLock::new();
        let nodes = NODES.get_or_init(Mutex::default);
        let Some(name) = config.name.clone() else {
            let text =
                format!("a candidate must be one of the peers; write {}://NAME?peers=…", config.scheme);
            return Err(config.error(ErrorKind::InvalidConfig, text));
        };
        let Some(dir) = config.state.clone() else {
            let text = "a candidate needs state=, the folder that incumbent peer init has made for this peer";
            return Err(config.error(ErrorKind::InvalidConfig, text));
        };
        let key = dir.canonicalize().unwrap_or(dir.clone());
        let there = nodes.lock().unwrap_or_else(PoisonError::into_inner).get(&key).and_then(Weak::upgrade);
        if let Some(node) = there {
            if node.name != name || node.told != config.told() {
                let text = format!("this process already is {} with other settings", node.name);
                return Err(config.error(ErrorKind::InvalidConfig, text));
            }
            return Ok(node);
        }
        let (ready, started) = oneshot::channel();
        let scheme = config.scheme;
        let thread = std::thread::Builder::new().name(format!("incumbent-{scheme}-peer"));
        let spawned = thread.spawn(move || run::<P>(&config, &name, &dir, make, ready));
        spawned.map_err(|error| {
            Error::new(ErrorKind::Internal, "the peer's thread cannot be started").with_source(error)
        })?;
        let node = started.await.map_err(|_| ended())?.map_err(|error| error.with_backend(scheme))?;
        let mut nodes = nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.retain(|_, node| node.strong_count() > 0);
        nodes.insert(key, Arc::downgrade(&node));
        Ok(node)
    }

    /// Asks, and waits for the answer. Dropped, it has been asked all the same.
    pub(super) async fn call<T>(&self, call: impl FnOnce(oneshot::Sender<Result<T>>) -> Call) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let _ = self.calls.send(call(answer));
        answered.await.map_err(|_| ended())?
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Unavailable, "this peer has ended")
}

/// The life of the thread.
fn run<P: Protocol>(
    config: &Arc<Config>,
    name: &CandidateId,
    dir: &Path,
    make: Make<P>,
    ready: oneshot::Sender<Result<Arc<Node>>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let text = "the peer's runtime cannot be started";
            let _ = ready.send(Err(Error::new(ErrorKind::Internal, text).with_source(error)));
            return;
        }
    };
    let writer = runtime.block_on(async {
        match Desktop::<P>::open(config, name, dir, make).await {
            Ok((mut desktop, calls, writer)) => {
                let node = Node {
                    calls,
                    signals: Arc::clone(&desktop.notes.signals),
                    cluster: desktop.cluster.clone(),
                    address: desktop.address,
                    told: config.told(),
                    name: name.clone(),
                };
                if ready.send(Ok(Arc::new(node))).is_ok() {
                    desktop.work().await;
                }
                Some(writer)
            }
            Err(error) => {
                let _ = ready.send(Err(error));
                None
            }
        }
    });
    // All tasks end with it, and with them the ways to the writer, which then ends with what it has begun.
    drop(runtime);
    if let Some(writer) = writer {
        let _ = writer.join();
    }
}

/// All that the thread works with.
pub(super) struct Desktop<P: Protocol> {
    pub(super) config: Arc<Config>,
    pub(super) name: CandidateId,
    pub(super) own: Own,
    pub(super) members: Members,
    /// The change of the list that somebody has asked this peer for.
    pub(super) changing: Option<Changing>,
    /// Those that are connected.
    pub(super) met: BTreeSet<CandidateId>,
    /// Told when a connection comes up or breaks.
    pub(super) changed: mpsc::Sender<()>,
    cluster: Authority,
    address: SocketAddr,
    make: Make<P>,
    started_at: BootInstant,
    pub(super) state: Arc<Mutex<State>>,
    pub(super) notes: Arc<Notes>,
    data_version: u64,
    pub(super) seats: BTreeMap<ElectionName, Seat<P>>,
    /// When each seat has something to do.
    due: BTreeSet<(BootInstant, ElectionName)>,
    disk_trouble: Option<Error>,
    calls: mpsc::UnboundedReceiver<Call>,
    inputs: mpsc::Receiver<Input<P::Message>>,
    written: mpsc::UnboundedReceiver<Written>,
    links_changed: mpsc::Receiver<()>,
    lines: Lines,
}

/// The way to another peer, which tells when it comes up or breaks.
pub(super) fn link(own: &Own, to: &CandidateId, changed: &mpsc::Sender<()>) -> Link {
    let link = Link::start(own.clone(), to.clone());
    let (mut state, changed) = (link.state(), changed.clone());
    tokio::spawn(async move {
        while state.changed().await.is_ok() {
            let _ = changed.try_send(());
        }
    });
    link
}

type Writer = std::thread::JoinHandle<()>;

impl<P: Protocol> Desktop<P> {
    async fn open(
        config: &Arc<Config>,
        name: &CandidateId,
        dir: &Path,
        make: Make<P>,
    ) -> Result<(Desktop<P>, mpsc::UnboundedSender<Call>, Writer)> {
        let data_version = data::read_first(config)?;
        let (folder, mut state) = patiently(config.patience(), async || Folder::open(dir)).await?;
        own_state(config, name, dir, &state)?;
        let listener = patiently(config.patience(), async || bind(config, name).await).await?;
        let started_at = clock::now();
        let address = listener.local_addr().map_err(|error| {
            Error::new(ErrorKind::Internal, "the listener has no address").with_source(error)
        })?;
        let first = roster::first(&config.members);
        let membership = match &state.membership {
            Some(membership) => membership.clone(),
            None => {
                // From now on the list is a fact, whatever a URL says.
                let membership = members::Membership::new(state.cluster.clone(), name.clone(), first.clone());
                state.membership = Some(membership.clone());
                folder.write_state(&state.encode()?)?;
                membership
            }
        };
        own_list(config, name, &membership.list)?;
        let (cluster, own_nonce, known) = (state.cluster.clone(), state.nonce, state.known.clone());
        let state = Arc::new(Mutex::new(state));
        let (tell, written) = mpsc::unbounded_channel();
        let badge = Badge { name: name.clone(), nonce: own_nonce, run: nonce()? };
        folder.sign(badge.run);
        let (disk, writer) = Disk::start(folder, Arc::clone(&state), move |news| drop(tell.send(news)))?;
        let known = Arc::new(Known::new(known, Some(disk.clone())));
        let member = Some(Membership { cluster: cluster.clone(), badge, known });
        let own = Own { config: Arc::clone(config), member, trial: false };
        let (changed, links_changed) = mpsc::channel(1);
        let notes = Arc::new(Notes {
            config: Arc::clone(config),
            me: name.clone(),
            disk,
            links: RwLock::default(),
            signals: Arc::default(),
            turns: Mutex::default(),
        });
        // Bounded: whoever sends more than is taken waits.
        let (inputs, inbox) = mpsc::channel(1024);
        tokio::spawn(data::follow(Arc::clone(config), data_version, inputs.clone()));
        let desk = Desk {
            own: own.clone(),
            notes: Arc::clone(&notes),
            inputs,
            guests: Mutex::default(),
            lines: Lines::default(),
        };
        tokio::spawn(Arc::new(desk).listen(listener));
        let count = membership.list.members.len();
        if count > 0 && count.is_multiple_of(2) {
            warn!("{}", even(count));
        }
        if let Some(behind) = config.behind() {
            warn!("{behind}");
        }
        let (calls, calls_inbox) = mpsc::unbounded_channel();
        let members = Members::new(config.timing, membership, started_at);
        let mut desktop = Desktop {
            own,
            members,
            changing: None,
            met: BTreeSet::new(),
            changed,
            config: Arc::clone(config),
            name: name.clone(),
            cluster,
            address,
            make,
            started_at,
            state,
            notes,
            data_version,
            seats: BTreeMap::new(),
            due: BTreeSet::new(),
            disk_trouble: None,
            calls: calls_inbox,
            inputs: inbox,
            written,
            links_changed,
            lines: Lines::default(),
        };
        desktop.connect();
        Ok((desktop, calls, writer))
    }

    /// Until nobody uses this peer any more.
    async fn work(&mut self) {
        loop {
            // First, so that no flood of messages keeps a leader from its rounds.
            self.timeouts();
            let next = self.due.first().map(|(due, _)| *due);
            let next = next.into_iter().chain(self.members.poll_timeout()).min();
            let sleep = async {
                match next {
                    Some(due) => tokio::time::sleep(due.since(clock::now())).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some(written) = self.written.recv() => self.wrote(written),
                call = self.calls.recv() => match call {
                    Some(call) => self.called(call),
                    None => return,
                },
                Some(input) = self.inputs.recv() => self.told(input),
                Some(()) = self.links_changed.recv() => {
                    self.meet();
                    self.settle_all();
                }
                () = sleep => {}
            }
        }
    }

    fn wrote(&mut self, written: Written) {
        match written {
            Written::Vote(election, proof) => {
                self.disk_trouble = None;
                self.touch(&election, |now, seat| seat.proven(now, proof));
            }
            Written::List(proof) => {
                self.disk_trouble = None;
                self.lists(|now, members| members.handle_proof(now, proof));
            }
            Written::Trouble(trouble) => {
                self.disk_trouble = trouble;
                self.settle_all();
            }
        }
    }

    fn called(&mut self, call: Call) {
        match call {
            Call::Acquire(claim, answer) => {
                let election = claim.election.clone();
                if let Err(error) = self.seat(&election) {
                    let _ = answer.send(Err(error));
                    return;
                }
                let patience = self.config.patience();
                self.touch(&election, |now, seat| seat.acquire(now, claim, now + patience, answer));
            }
            Call::Renew(claim, grant, answer) => {
                let election = claim.election.clone();
                if let Err(error) = self.seat(&election) {
                    let _ = answer.send(Err(error));
                    return;
                }
                let patience = self.config.patience();
                self.touch(&election, |now, seat| seat.renew(now, &claim, &grant, now + patience, answer));
            }
            Call::Release(election, nonce, next, answer) => {
                let sent = self.touch(&election, |now, seat| seat.release(now, nonce, next.as_ref()));
                let patience = self.config.patience();
                // The process may end after this answer: what tells the others must have left by then.
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(patience, join_all(sent)).await;
                    let _ = answer.send(Ok(()));
                });
            }
            Call::Note(register, change, answer) => {
                let notes = Arc::clone(&self.notes);
                tokio::spawn(async move {
                    let _ = answer.send(notes.propose(&register, change).await);
                });
            }
            Call::Advice(answer) => {
                let _ = answer.send(Ok(self.advice()));
            }
        }
    }

    fn told(&mut self, input: Input<P::Message>) {
        match input {
            Input::Said(say, cut) => {
                let election = say.election.clone();
                if let Err(error) = self.seat(&election) {
                    return self.lines.warn("", &error.to_string());
                }
                let (from, list) = (say.envelope.from.clone(), say.envelope.list);
                let mut refused = None;
                self.touch_with(&election, |now, seat, acts| refused = seat.said(now, say, acts).err());
                match refused {
                    None => {}
                    Some(refused) if refused.is_fault() => drop(cut.try_send(refused.to_string())),
                    Some(_) => self.lists(|_, members| members.reconcile(&from, list)),
                }
            }
            Input::List(envelope) => {
                let from = envelope.from.clone();
                let mut refused = None;
                self.lists(|now, members| refused = members.handle_message(now, envelope).err());
                if let Some(refused) = refused {
                    let who = format!("a message of {from} about the list is refused: ");
                    self.lines.warn(&who, &refused.to_string());
                }
            }
            Input::TellList(answer) => {
                let now = clock::now();
                let _ = answer.send((self.members.list().clone(), self.members.awaited(now)));
            }
            Input::Propose(base, change, answer) => self.propose(base, change, answer),
            Input::Look(election, answer) => {
                let now = clock::now();
                let _ = answer.send(self.seats.get(&election).and_then(|seat| seat.notice(now)));
            }
            Input::Data(version) => {
                self.data_version = version;
                self.seats.values_mut().for_each(|seat| seat.protocol.set_data_version(version));
            }
        }
    }

    fn timeouts(&mut self) {
        let now = clock::now();
        if self.members.poll_timeout().is_some_and(|due| due <= now) {
            self.lists(|now, members| members.handle_timeout(now));
        }
        let due: Vec<_> =
            self.due.iter().take_while(|(due, _)| *due <= now).map(|(_, name)| name.clone()).collect();
        for election in due {
            self.touch(&election, |now, seat| seat.timeout(now));
        }
    }

    /// Something has changed that the answers to all of them depend on.
    fn settle_all(&mut self) {
        let elections: Vec<_> = self.seats.keys().cloned().collect();
        for election in elections {
            self.touch(&election, |_, _| {});
        }
    }

    /// Makes the seat of an election that nobody has spoken of yet.
    fn seat(&mut self, election: &ElectionName) -> Result<()> {
        if self.seats.contains_key(election) {
            return Ok(());
        }
        let (durable, count) = {
            let state = disk::lock(&self.state);
            (state.durable(election), state.elections.len())
        };
        if durable.term.0 == 0 && count.max(self.seats.len()) >= ELECTIONS_MAX {
            let text =
                format!("these peers remember {ELECTIONS_MAX} elections, and take part in no further one");
            return Err(self.config.error(ErrorKind::Unsupported, text));
        }
        let list = self.config.roster.get().list.clone();
        if !list.members.contains_key(&self.name) || self.members.list().version == 0 {
            let text = format!(
                "{} is no member of these peers; add it with incumbent peer add, at a member",
                self.name
            );
            return Err(self.config.error(ErrorKind::Unavailable, text));
        }
        let rules =
            Rules { cluster: self.cluster.clone(), id: self.name.clone(), list, timing: self.config.timing };
        let started_at = silent_from(&durable, self.started_at);
        let mut protocol = P::new((self.make)(&self.config, rules), durable, nonce()?.0, started_at)?;
        protocol.set_data_version(self.data_version);
        let now = clock::now();
        self.seats.insert(election.clone(), Seat::new(election.clone(), protocol, now));
        Ok(())
    }

    pub(super) fn touch(
        &mut self,
        election: &ElectionName,
        act: impl FnOnce(BootInstant, &mut Seat<P>),
    ) -> Vec<oneshot::Receiver<()>> {
        self.touch_with(election, |now, seat, _| act(now, seat))
    }

    /// Does something at a seat, and all that follows from it. Gives what tells when each message has left.
    fn touch_with(
        &mut self,
        election: &ElectionName,
        act: impl FnOnce(BootInstant, &mut Seat<P>, &mut Vec<Act<P::Message>>),
    ) -> Vec<oneshot::Receiver<()>> {
        let Some(mut seat) = self.seats.remove(election) else { return Vec::new() };
        let now = clock::now();
        self.due.remove(&(seat.due_at, election.clone()));
        let mut acts = Vec::new();
        act(now, &mut seat, &mut acts);
        seat.pump(now, &mut acts);
        let around = self.around();
        seat.settle(now, &around);
        seat.pump(now, &mut acts);
        let mut sent = Vec::new();
        for act in acts {
            match act {
                Act::Save(save) => self.notes.disk.save(election.clone(), save),
                Act::Tell => self.notes.signals.send(election.as_str()),
                Act::Send(to, say) => {
                    let Some(link) = self.notes.link(&to) else { continue };
                    if let Ok(frame) = wire::encode(&Forth::Say(say)) {
                        sent.push(link.send(frame, now + self.config.timing.ttl / 4));
                    }
                }
            }
        }
        if seat.is_idle(now) {
            return sent;
        }
        // Never at once again: what is due now was done.
        seat.due_at = seat.due().max(now + Duration::from_micros(200));
        self.due.insert((seat.due_at, election.clone()));
        self.seats.insert(election.clone(), seat);
        sent
    }

    fn around(&self) -> Around<'_> {
        let listed = self.config.roster.get();
        let mut links = self.notes.links();
        links.retain(|(name, _)| listed.members.contains_key(name));
        let mut states = links.iter().map(|(_, link)| link.state().borrow().clone());
        let up = 1 + links.iter().filter(|(_, link)| link.is_up()).count();
        if let Some(error) = &self.disk_trouble {
            return Around { cluster: &self.cluster, trouble: Some(error.clone()), connecting: false };
        }
        if up >= self.config.quorum() {
            return Around { cluster: &self.cluster, trouble: None, connecting: false };
        }
        let connecting = states.any(|state| matches!(state, LinkState::New));
        Around { cluster: &self.cluster, trouble: Some(self.without_majority(up)), connecting }
    }

    /// Why there is no majority: what is wrong with a peer rather than who is merely away.
    fn without_majority(&self, up: usize) -> Error {
        let down: Vec<Error> = self
            .notes
            .links()
            .iter()
            .filter_map(|(_, link)| match &*link.state().borrow() {
                LinkState::Down(error) => Some(error.clone()),
                LinkState::New | LinkState::Up => None,
            })
            .collect();
        no_majority(&self.config, up, &down)
    }

    fn advice(&self) -> Vec<String> {
        let mut advice = Vec::new();
        let count = self.config.roster.get().members.len();
        if count.is_multiple_of(2) {
            advice.push(even(count));
        }
        advice.extend(self.config.behind());
        for (_, link) in self.notes.links() {
            if let LinkState::Down(error) = &*link.state().borrow() {
                advice.push(error.to_string());
            }
        }
        advice
    }
}

/// Refuses the state of another peer.
pub(super) fn own_state(config: &Config, name: &CandidateId, dir: &Path, state: &State) -> Result<()> {
    if state.name == *name {
        return Ok(());
    }
    let text = format!(
        "{} is the state of {}, not of {name}; give each peer a state of its own",
        dir.display(),
        state.name
    );
    Err(config.error(ErrorKind::InvalidConfig, text))
}

/// Puts in force the list that stands in this peer's state.
pub(super) fn own_list(config: &Config, name: &CandidateId, list: &List) -> Result<()> {
    let first = roster::first(&config.members);
    if list.version == 1 && *list != first {
        let (kept, told) = (roster::text(list), roster::text(&first));
        let text = format!(
            "{name} took part as one of peers={kept}, and is told peers={told}; a list is changed with incumbent peer add and incumbent peer remove"
        );
        return Err(config.error(ErrorKind::InvalidConfig, text));
    }
    if list.version == 0 {
        config.roster.clear();
        return Ok(());
    }
    config.roster.set(list)
}

/// What an even number of peers means.
pub(super) fn even(count: usize) -> String {
    format!(
        "{count} peers stand the loss of {} of them, as {} do; an odd number is as safe and has fewer to keep up",
        (count - 1) / 2,
        count - 1
    )
}

/// The error of whoever reaches `up` of the peers, and why the others are not there.
pub(super) fn no_majority(config: &Config, up: usize, down: &[Error]) -> Error {
    let worst = down.iter().find(|error| !error.is_retryable());
    let reasons: Vec<String> = match worst {
        Some(error) => vec![error.to_string()],
        None => down.iter().map(ToString::to_string).collect(),
    };
    let reasons = if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) };
    let text = format!(
        "{up} of {} peers can be reached, and a majority is {}{reasons}",
        config.roster.get().members.len(),
        config.quorum()
    );
    config.error(worst.map_or(ErrorKind::Unavailable, Error::kind), text)
}

async fn bind(config: &Config, name: &CandidateId) -> Result<TcpListener> {
    let listed = config.roster.get();
    let host = listed.members.get(name).or_else(|| config.members.get(name)).ok_or_else(ended)?;
    let address = host.authority(0);
    let cannot = |error: std::io::Error| {
        let kind = match error.kind() {
            std::io::ErrorKind::AddrInUse => ErrorKind::Unavailable,
            _ => ErrorKind::InvalidConfig,
        };
        let text = format!("{name} cannot listen on {address}, its address in peers=: {error}");
        config.error(kind, text).with_source(error)
    };
    let found =
        tokio::net::lookup_host((host.name.as_str(), host.port.unwrap_or_default())).await.map_err(cannot)?;
    let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for address in found {
        let listening = || {
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            socket.listen(128)
        };
        match listening() {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(cannot(last))
}

/// Tries again for a while what fails because somebody is about to end, as another process on the same state or port.
async fn patiently<T>(patience: Duration, mut attempt: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    // Both waits together fit into one call of an elector.
    let end = clock::now() + patience / 2;
    loop {
        match attempt().await {
            Err(error) if error.is_retryable() && clock::now() < end => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            outcome => return outcome,
        }
    }
}
