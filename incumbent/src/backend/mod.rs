//! The authorities that grant: one module each, one feature each.

#[cfg(feature = "etcd")]
mod etcd;
