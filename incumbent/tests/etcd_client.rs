//! The etcd client against real servers of both versions. It is private to the library, so its sources are compiled into this
//! test once more; what only the lease session uses of them is unused here.
#![cfg(feature = "etcd")]
#![expect(dead_code, unreachable_pub, reason = "a part of the library")]

#[path = "../src/clock.rs"]
mod clock;

#[path = "../src/backend"]
mod backend {
    pub(crate) mod hosts;
    pub(crate) mod tls;

    mod etcd {
        mod auth;
        mod client;
        mod connection;
        mod dial;
        mod failure;
        mod proto;
        mod watch;

        #[path = "../../../tests/etcd_client/mod.rs"]
        mod tests;
    }
}
