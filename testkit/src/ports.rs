//! Free loopback ports that no other test run on this machine takes.
//!
//! A port is taken from below the range that the kernel gives to outgoing connections: inside that range a
//! client that dials a stopped server can be given the server's own port and then talks to itself. The port
//! stays reserved for as long as the [`Port`] lives, also while its server is down, by an abstract socket of
//! that number: one name space per network stack, gone with the process whatever kills it.

use std::net::{Ipv4Addr, SocketAddr};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::clock::now;

const FIRST: u32 = 10_000;
const COUNT: u32 = 20_000;

/// A reserved TCP port on 127.0.0.1.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _reservation: reservation::Reservation,
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
            if let Ok(reservation) = reservation::take(number) {
                return Port { number, _reservation: reservation };
            }
        }
        panic!("no free port between {FIRST} and {} on 127.0.0.1", FIRST + COUNT);
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
    use std::net::{Ipv4Addr, SocketAddrV4};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

    pub(super) type Reservation = UnixListener;

    pub(super) fn take(number: u16) -> io::Result<Reservation> {
        let name = SocketAddr::from_abstract_name(format!("incumbent-testkit-port-{number}"))?;
        let reservation = UnixListener::bind_addr(&name)?;
        // Could a server bind it? The socket never listens: another thread may be starting a process just now, which
        // holds a copy of it for a moment, and a copy that listened would be in the server's way.
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, number))?;
        Ok(reservation)
    }
}

#[cfg(not(target_os = "linux"))]
mod reservation {
    //! No abstract sockets here: the port is only known to be free now.
    use std::io;
    use std::net::{Ipv4Addr, TcpListener};

    pub(super) type Reservation = ();

    pub(super) fn take(number: u16) -> io::Result<Reservation> {
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).map(drop)
    }
}
