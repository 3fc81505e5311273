//! A TCP relay between a client and a server, which delays, holds back and cuts what passes.
//!
//! One thread for each connection owns both of its sockets and asks, before each step, what the test wants now.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use incumbent_core::BootInstant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_linger;

use crate::clock::now;

/// One of the two ways through a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Answers,
}

/// A relay on a port of its own; dropping it closes all of its connections.
///
/// Bytes keep their order in each direction. What is held back or delayed was acknowledged to its sender: as in a
/// network that swallows packets, the sender sees nothing but silence.
#[derive(Debug)]
pub struct Relay {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    rules: [Rule; 2],
    bytes: [u64; 2],
    accepted: u64,
    cut: bool,
    closed: bool,
    open: BTreeMap<u64, Handle>,
}

/// What happens to bytes of one direction.
#[derive(Clone, Copy, Debug, Default)]
struct Rule {
    delay: Duration,
    held: bool,
}

/// The relay's hold on a connection's thread.
#[derive(Debug)]
struct Handle {
    waker: UnixStream,
    end: Option<End>,
}

/// How a connection is to end.
#[derive(Clone, Copy, Debug)]
enum End {
    Close,
    Reset,
    /// Nothing passes any more, and nobody is told.
    Silence,
}

impl Relay {
    /// A relay to the server at `upstream`, given as `IP:PORT`.
    ///
    /// # Panics
    /// If `upstream` is no address, or no port is free.
    #[track_caller]
    pub fn to(upstream: &str) -> Relay {
        let upstream = upstream.parse().unwrap_or_else(|e| panic!("{upstream:?} is no address: {e}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let addr = listener.local_addr().expect("the address of a bound socket");
        let shared = Arc::new(Shared { upstream, state: Mutex::default() });
        let for_thread = Arc::clone(&shared);
        thread::spawn(move || accept(&listener, &for_thread));
        Relay { addr, shared }
    }

    /// The address for clients, as `127.0.0.1:PORT`.
    pub fn addr(&self) -> String {
        self.addr.to_string()
    }

    /// From now on what passes in this direction arrives `delay` late (zero: at once).
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.change(|state| state.rules[direction as usize].delay = delay);
    }

    /// Keeps back everything in this direction, also on connections yet to come, until [`pass`](Relay::pass).
    pub fn hold(&self, direction: Direction) {
        self.change(|state| state.rules[direction as usize].held = true);
    }

    /// Lets what was held back in this direction go on, in order.
    pub fn pass(&self, direction: Direction) {
        self.change(|state| state.rules[direction as usize].held = false);
    }

    /// Closes every connection (FIN), discards what was held back, and closes new connections at once, until
    /// [`heal`](Relay::heal).
    pub fn cut(&self) {
        self.change(|state| {
            state.cut = true;
            state.end_all(End::Close);
        });
    }

    /// Resets every open connection (RST) and discards what was held back. New connections pass.
    pub fn reset(&self) {
        self.change(|state| state.end_all(End::Reset));
    }

    /// From now on nothing passes on the connections that are open now, for ever, and neither side is told. New connections pass.
    pub fn silence_open(&self) {
        self.change(|state| state.end_all(End::Silence));
    }

    /// Ends every delay, hold and cut.
    pub fn heal(&self) {
        self.change(|state| {
            state.rules = Default::default();
            state.cut = false;
        });
    }

    /// How many bytes have been passed on in this direction.
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.shared.lock().bytes[direction as usize]
    }

    /// How many connections clients have made.
    pub fn accepted(&self) -> u64 {
        self.shared.lock().accepted
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        self.shared.lock().open.len()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.shared.lock();
        change(&mut state);
        for handle in state.open.values() {
            // A full pipe wakes its thread as well as one more byte would.
            let _ = (&handle.waker).write(&[0]);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.change(|state| {
            state.closed = true;
            state.end_all(End::Close);
        });
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.addr);
    }
}

impl State {
    fn end_all(&mut self, end: End) {
        for handle in self.open.values_mut() {
            handle.end = Some(end);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        let Ok(client) = client else { continue };
        let mut state = shared.lock();
        if state.closed {
            return;
        }
        state.accepted += 1;
        let id = state.accepted;
        let Ok((waker, wakened)) = UnixStream::pair() else { continue };
        if state.cut || waker.set_nonblocking(true).is_err() || wakened.set_nonblocking(true).is_err() {
            continue;
        }
        state.open.insert(id, Handle { waker, end: None });
        drop(state);
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            // A server that does not answer looks to the client like one that closes.
            if let Ok(server) = TcpStream::connect(shared.upstream) {
                let _ = Connection::new(id, client, server, wakened).and_then(|c| c.run(&shared));
            }
            shared.lock().open.remove(&id);
        });
    }
}

struct Connection {
    id: u64,
    /// The client's socket and the server's: a direction reads from the one of its number, writes to the other.
    sockets: [TcpStream; 2],
    ways: [Way; 2],
    wakened: UnixStream,
}

/// What is on its way in one direction.
#[derive(Default)]
struct Way {
    queue: VecDeque<(BootInstant, Vec<u8>)>,
    /// The sender has finished; the receiver is told when the queue is empty.
    finished: bool,
    told: bool,
}

impl Connection {
    fn new(id: u64, client: TcpStream, server: TcpStream, wakened: UnixStream) -> io::Result<Connection> {
        for socket in [&client, &server] {
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
        }
        Ok(Connection { id, sockets: [client, server], ways: Default::default(), wakened })
    }

    fn run(mut self, shared: &Shared) -> io::Result<()> {
        loop {
            let (mut rules, end) = {
                let state = shared.lock();
                (state.rules, state.open.get(&self.id).and_then(|handle| handle.end))
            };
            match end {
                Some(End::Close) => return Ok(()),
                Some(End::Reset) => return self.reset(),
                Some(End::Silence) => rules.iter_mut().for_each(|rule| rule.held = true),
                None => {}
            }
            for (i, rule) in rules.into_iter().enumerate() {
                let moved = self.read(i).and_then(|()| self.write(i, rule));
                let Ok(written) = moved else { return self.reset() };
                shared.lock().bytes[i] += written;
            }
            if self.ways.iter().all(|way| way.told) {
                return Ok(());
            }
            self.wait(rules)?;
        }
    }

    /// Takes over what the sender of direction `i` has sent.
    fn read(&mut self, i: usize) -> io::Result<()> {
        let mut buffer = [0; 16 * 1024];
        while !self.ways[i].finished {
            match self.sockets[i].read(&mut buffer) {
                Ok(0) => self.ways[i].finished = true,
                Ok(n) => self.ways[i].queue.push_back((now(), buffer[..n].to_vec())),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Passes on what is due in direction `i`; gives the number of bytes.
    fn write(&mut self, i: usize, rule: Rule) -> io::Result<u64> {
        let way = &mut self.ways[i];
        let socket = &mut self.sockets[1 - i];
        let mut written = 0;
        while !rule.held
            && let Some((at, bytes)) = way.queue.front_mut()
            && *at + rule.delay <= now()
        {
            match socket.write(bytes) {
                Ok(n) => {
                    written += n as u64;
                    bytes.drain(..n);
                    if bytes.is_empty() {
                        way.queue.pop_front();
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        if way.finished && way.queue.is_empty() && !way.told && !rule.held {
            way.told = true;
            socket.shutdown(Shutdown::Write)?;
        }
        Ok(written)
    }

    /// Sleeps until there is something to read, to write, or to ask the relay.
    fn wait(&self, rules: [Rule; 2]) -> io::Result<()> {
        let mut wanted = [PollFlags::empty(); 2];
        let mut timeout: Option<Duration> = None;
        for (i, rule) in rules.into_iter().enumerate() {
            let way = &self.ways[i];
            if !way.finished {
                wanted[i] |= PollFlags::IN;
            }
            if let Some((at, _)) = way.queue.front().filter(|_| !rule.held) {
                let left = (*at + rule.delay).since(now());
                if left.is_zero() {
                    wanted[1 - i] |= PollFlags::OUT;
                } else {
                    timeout = Some(timeout.map_or(left, |t| t.min(left)));
                }
            }
        }
        let mut fds = vec![PollFd::new(&self.wakened, PollFlags::IN)];
        // A socket of which nothing is wanted would still report that its peer has hung up, again and again.
        for (socket, wanted) in self.sockets.iter().zip(wanted).filter(|(_, wanted)| !wanted.is_empty()) {
            fds.push(PollFd::new(socket, wanted));
        }
        let timeout =
            timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        while (&self.wakened).read(&mut [0; 64]).is_ok_and(|n| n > 0) {}
        Ok(())
    }

    /// Ends both sides with RST instead of FIN.
    fn reset(self) -> io::Result<()> {
        for socket in &self.sockets {
            set_socket_linger(socket, Some(Duration::ZERO))?;
        }
        Ok(())
    }
}
