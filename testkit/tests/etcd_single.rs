//! One etcd server of each version: start, kill, freeze, restart.

use std::time::Duration;

use testkit::{Etcd, Version, now};

#[test]
fn a_server_starts_and_keeps_its_data_over_kill_and_stop() {
    for version in Version::ALL {
        let mut etcd = Etcd::single(version).start().unwrap();
        let expected = if version == Version::V3_4 { "3.4." } else { "3.5." };
        assert!(etcd.etcdctl_ok(&["version"]).contains(&format!("etcdctl version: {expected}")));
        etcd.etcdctl_ok(&["put", "key", "one"]);
        let (pid, endpoints) = (etcd.pid(0), etcd.endpoints());
        etcd.kill(0);
        assert!(!etcd.etcdctl(&["--command-timeout=200ms", "get", "key"]).status.success());
        etcd.restart(0);
        assert_ne!(etcd.pid(0), pid);
        assert_eq!(etcd.endpoints(), endpoints);
        assert_eq!(etcd.etcdctl_ok(&["get", "key", "--print-value-only"]), "one\n");
        etcd.stop(0);
        etcd.restart(0);
        assert_eq!(etcd.etcdctl_ok(&["get", "key", "--print-value-only"]), "one\n");
    }
}

#[test]
fn a_paused_server_answers_only_after_it_was_resumed() {
    let mut etcd = Etcd::single(Version::V3_5).fast().start().unwrap();
    etcd.pause(0);
    assert!(!etcd.etcdctl(&["--command-timeout=300ms", "put", "key", "one"]).status.success());
    etcd.resume(0);
    etcd.etcdctl_ok(&["put", "key", "two"]);
    assert_eq!(etcd.etcdctl_ok(&["get", "key", "--print-value-only"]), "two\n");
}

#[test]
fn dropping_a_server_ends_it_and_removes_its_data() {
    let etcd = Etcd::single(Version::V3_5).fast().start().unwrap();
    let (pid, dir) = (etcd.pid(0), etcd.dir().to_owned());
    assert!(dir.join("n0").exists());
    let before = now();
    drop(etcd);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    assert!(!dir.exists());
    assert!(now().since(before) < Duration::from_secs(20));
}
