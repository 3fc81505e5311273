//! etcd v3 (`etcd://`).
#![cfg_attr(not(test), expect(dead_code, reason = "the lease session that uses the client is being written"))]

mod auth;
mod client;
mod connection;
mod dial;
mod failure;
mod proto;
mod watch;

#[cfg(test)]
mod tests;
