//! etcd v3 (`etcd://`).

mod auth;
mod client;
mod connection;
mod failure;
mod proto;
mod tls;
mod watch;

#[cfg(test)]
mod tests;
