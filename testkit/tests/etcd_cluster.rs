//! Clusters, TLS, authentication and a stalled disk, on each version of etcd.

use std::time::Duration;

use testkit::{Etcd, Proc, Version, now, wait_until};

#[test]
fn a_cluster_elects_another_leader_when_its_leader_is_killed_or_frozen() {
    for version in Version::ALL {
        let mut etcd = Etcd::cluster(version, 3).fast().start().unwrap();
        assert_eq!(etcd.endpoints().len(), 3);
        etcd.etcdctl_ok(&["put", "key", "one"]);
        let first = etcd.leader_index();
        etcd.kill(first);
        assert!(wait_until(Duration::from_secs(30), || etcd.leader_index() != first));
        etcd.restart(first);
        let second = etcd.leader_index();
        etcd.pause(second);
        assert!(wait_until(Duration::from_secs(30), || etcd.leader_index() != second));
        // A member can be restarted while another one is frozen.
        etcd.restart((second + 1) % 3);
        etcd.resume(second);
        etcd.wait_ready();
        (0..3).for_each(|i| etcd.kill(i));
        (0..3).for_each(|i| etcd.launch(i));
        etcd.wait_ready();
        assert_eq!(etcd.etcdctl_ok(&["get", "key", "--print-value-only"]), "one\n");
    }
}

#[test]
fn a_stalled_disk_makes_a_write_slow_until_the_stall_ends() {
    let delay = Duration::from_secs(2);
    for version in Version::ALL {
        let etcd = Etcd::single(version).start().unwrap();
        etcd.etcdctl_ok(&["put", "key", "one"]);
        let stall = etcd.stall_fsync(0, delay);
        let before = now();
        etcd.etcdctl_ok(&["--command-timeout=60s", "put", "key", "two"]);
        assert!(now().since(before) >= delay, "the write took only {:?}", now().since(before));
        drop(stall);

        // A stall that would outlast the test ends with its guard.
        let stall = etcd.stall_fsync(0, Duration::from_secs(600));
        let mut put = etcd.etcdctl_command();
        put.args(["--command-timeout=60s", "put", "key", "three"]);
        let put = Proc::spawn(put);
        std::thread::sleep(Duration::from_millis(500));
        assert!(put.try_wait().is_none());
        drop(stall);
        assert!(put.wait(Duration::from_secs(30)).success());
    }
}

#[test]
fn tls_admits_only_who_trusts_the_authority_and_shows_a_certificate() {
    for version in Version::ALL {
        let etcd = Etcd::single(version).fast().client_auth().start().unwrap();
        let tls = etcd.certificates().unwrap();
        etcd.etcdctl_ok(&["put", "key", "one"]);
        assert!(etcd.url().contains("?tls=on&ca=/"), "{}", etcd.url());
        let try_put = |change: &dyn Fn(&mut std::process::Command)| {
            let mut put = etcd.etcdctl_command();
            change(&mut put);
            put.args(["--command-timeout=1s", "put", "key", "two"]).output().unwrap().status.success()
        };
        assert!(try_put(&|_| {}));
        assert!(!try_put(&|put| {
            put.env_remove("ETCDCTL_CACERT");
        }));
        assert!(!try_put(&|put| {
            put.env_remove("ETCDCTL_CERT").env_remove("ETCDCTL_KEY");
        }));
        assert!(tls.client_cert.exists());
    }
}

#[test]
fn authentication_admits_only_the_right_password() {
    for version in Version::ALL {
        let etcd = Etcd::single(version).fast().auth("app", "app-password").start().unwrap();
        assert!(etcd.url().starts_with("etcd://app:app-password@127.0.0.1:"), "{}", etcd.url());
        let try_put = |user: &str| {
            let mut put = etcd.etcdctl_command();
            put.env("ETCDCTL_USER", user).args(["--command-timeout=2s", "put", "key", "value"]);
            put.output().unwrap().status.success()
        };
        assert!(try_put("app:app-password"));
        assert!(!try_put("app:wrong"));
        assert!(
            !etcd
                .etcdctl_command()
                .env_remove("ETCDCTL_USER")
                .args(["get", "key"])
                .output()
                .unwrap()
                .status
                .success()
        );
    }
}

#[test]
fn a_directory_of_ones_own_outlives_its_server() {
    let dir = testkit::run_dir("own");
    let etcd = Etcd::single(Version::V3_5).fast().dir(&dir).start().unwrap();
    etcd.etcdctl_ok(&["put", "key", "kept"]);
    drop(etcd);
    let etcd = Etcd::single(Version::V3_5).fast().dir(&dir).start().unwrap();
    assert_eq!(etcd.etcdctl_ok(&["get", "key", "--print-value-only"]), "kept\n");
}
