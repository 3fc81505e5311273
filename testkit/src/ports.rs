//! Free loopback ports that no other test run on this machine takes.
//!
//! A port is taken from below the range that the kernel gives to outgoing connections: inside that range a
//! client that dials a stopped server can be given the server's own port and then talks to itself. The port
//! stays reserved for as long as the [`Port`] lives, also while its server is down, by an abstract socket of
//! that number: one name space per network stack, gone with the process whatever kills it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::clock::now;

const FIRST: u32 = 10_000;
const COUNT: u32 = 20_000;

/// A reserved TCP port on 127.0.0.1.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _reservation: Option<reservation::Reservation>,
}

impl Port {
    /// Reserves a port on which nothing listens.
    pub fn reserve() -> Port {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Two processes that start at once begin at different places; a collision only costs another try.
        let start = process::id().wrapping_mul(7919).wrapping_add(now().as_nanos() as u32);
        for _ in 0..COUNT {
            let step = NEXT.fetch_add(1, Ordering::Relaxed);
            let number = (FIRST + start.wrapping_add(step) % COUNT) as u16;
            if let Some(port) = Port::reserve_number(number) {
                return port;
            }
        }
        panic!("no free port between {FIRST} and {} on 127.0.0.1", FIRST + COUNT);
    }

    fn reserve_number(number: u16) -> Option<Port> {
        let reservation = reservation::take(number).ok()?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Port { number, _reservation: reservation })
    }

    /// The number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The address, on 127.0.0.1.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }
}

#[cfg(target_os = "linux")]
mod reservation {
    use std::io;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    pub(super) type Reservation = UnixListener;

    pub(super) fn take(number: u16) -> io::Result<Option<Reservation>> {
        let name = SocketAddr::from_abstract_name(format!("incumbent-testkit-port-{number}"))?;
        UnixListener::bind_addr(&name).map(Some)
    }
}

#[cfg(not(target_os = "linux"))]
mod reservation {
    //! No abstract sockets here: the port is only known to be free now.
    use std::io;

    pub(super) type Reservation = std::convert::Infallible;

    pub(super) fn take(_number: u16) -> io::Result<Option<Reservation>> {
        Ok(None)
    }
}
