//! etcd v3 (`etcd://`).
