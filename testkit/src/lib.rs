//! Real servers, processes and faults for the tests of this workspace.
//!
//! Nothing here stands in for the real thing: [`Etcd`] runs Debian's own etcd, [`Proc`] runs real processes,
//! [`Relay`] moves real bytes. Everything that is started is stopped again, also when the test process is
//! killed: see [`mod@reaper`].
//!
//! Calls that cannot do what a test asked panic with the reason; only [`fetch`] and the start of a server, which
//! `cargo xtask servers` uses too, return [`Result`].

mod apt;
mod cgroup;
pub mod clock;
pub mod consul;
mod error;
pub mod etcd;
pub mod fetch;
mod freezer;
pub mod kubernetes;
pub mod mysql;
pub mod nats;
pub mod ports;
pub mod postgres;
pub mod probe;
pub mod proc;
pub mod python;
pub mod reaper;
pub mod redis;
pub mod relay;
mod server;
pub mod stall;
pub mod tls;
pub mod wall_clock;
pub mod zookeeper;

pub use cgroup::Cgroup;
pub use clock::{now, wait_until};
pub use consul::Consul;
pub use error::{Error, Result};
pub use etcd::{Etcd, Version};
pub use freezer::{Freezer, Mount};
pub use kubernetes::Kubernetes;
pub use mysql::Mysql;
pub use nats::{Nats, NatsVersion};
pub use ports::Port;
pub use postgres::{PgBouncer, PoolMode, Postgres};
pub use probe::{Capability, require};
pub use proc::{Line, Proc, Stream, is_stopped};
pub use reaper::run_dir;
pub use redis::Redis;
pub use relay::{Direction, Relay};
pub use rustix::process::Signal;
pub use stall::Stall;
pub use tls::Certificates;
pub use wall_clock::WallClock;
pub use zookeeper::Zookeeper;
