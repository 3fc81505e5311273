//! The groups of tests that `cargo xtask test` runs, in this order; those that need servers three at a time.
//!
//! A test target (a crate's unit tests, one file under `tests/`, one example) belongs to exactly one group; a
//! target that belongs to none or to two is an error. A file `tests/SERVER_*.rs` of any crate needs servers of that kind,
//! `tests/root_*.rs` needs root.

use testkit::Kubernetes;
use testkit::fetch::{
    Bundle, CONSUL, ETCD_3_4, ETCD_3_5, FAKETIME, JAVA, KUBECTL, MARIADB, NATS_2_9, NATS_2_10, PGBOUNCER,
    POSTGRES, REDIS, STRACE, ZOOKEEPER_3_8, ZOOKEEPER_3_9,
};

use crate::Result;
use crate::targets::{SERVERS, Target};
use crate::verify;

/// Tests that are run, or skipped, together.
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// What is fetched before any group runs.
    pub(crate) needs: &'static [&'static Bundle],
    pub(crate) steps: &'static [Step],
}

/// One part of a group.
pub(crate) enum Step {
    /// A check of the sources, which counts as one test.
    Check(&'static str, fn() -> Result),
    /// The test targets for which this holds.
    Tests(fn(&Target) -> bool),
    /// A cargo command; where it prints no test results, it counts as one test.
    Cargo(&'static [&'static str]),
}

impl Group {
    /// Whether its tests mostly wait for servers, so that another such group may run beside it.
    pub(crate) fn mostly_waits(&self) -> bool {
        SERVERS.contains(&self.name)
    }
}

pub(crate) const GROUPS: &[Group] = &[
    Group {
        name: "lint",
        about: "rustfmt and clippy",
        needs: &[],
        steps: &[Step::Check("rustfmt", verify::format), Step::Check("clippy", verify::clippy)],
    },
    Group {
        name: "core",
        about: "incumbent-core",
        needs: &[],
        steps: &[Step::Tests(|t| t.is_of("incumbent-core"))],
    },
    Group {
        name: "sim",
        about: "simulated years of elections",
        needs: &[],
        steps: &[Step::Tests(|t| t.is_of("incumbent-sim"))],
    },
    Group {
        name: "lib",
        about: "the library, on backends that need no server",
        needs: &[],
        steps: &[Step::Tests(|t| t.is_of("incumbent"))],
    },
    Group {
        name: "guardian",
        about: "incumbent-guardian",
        needs: &[],
        steps: &[Step::Tests(|t| t.is_of("incumbent-guardian"))],
    },
    Group {
        name: "cli",
        about: "the command, on backends that need no server, and libfaketime",
        needs: &[&FAKETIME],
        steps: &[Step::Tests(|t| t.is_of("incumbent-cli"))],
    },
    Group {
        name: "conformance",
        about: "the rules, on backends that need no server, and libfaketime",
        needs: &[&FAKETIME],
        steps: &[Step::Tests(|t| t.is_of("incumbent-conformance"))],
    },
    Group {
        name: "billing",
        about: "the example: ten replicas, one ledger",
        needs: &[],
        steps: &[Step::Tests(|t| t.is_of("billing"))],
    },
    Group {
        name: "testkit",
        about: "what the tests themselves stand on",
        needs: &[&FAKETIME],
        steps: &[Step::Tests(|t| t.is_of("testkit") || t.is_of("xtask"))],
    },
    Group {
        name: "root",
        about: "faults that only root can inject, some with strace",
        needs: &[&STRACE],
        steps: &[Step::Tests(Target::needs_root)],
    },
    Group {
        name: "doc",
        about: "the examples in the documentation",
        needs: &[],
        steps: &[Step::Cargo(&["test", "--doc", "--workspace", "--all-features", "--locked"])],
    },
    Group {
        name: "consul",
        about: "everything that needs Consul servers",
        needs: &[&CONSUL, &STRACE, &FAKETIME],
        steps: &[Step::Tests(|t| t.needs("consul"))],
    },
    Group {
        name: "etcd",
        about: "everything that needs etcd servers, and strace",
        needs: &[&ETCD_3_4, &ETCD_3_5, &STRACE, &FAKETIME],
        steps: &[Step::Tests(|t| t.needs("etcd"))],
    },
    Group {
        name: "kubernetes",
        about: "everything that needs a Kubernetes API server, which is built from its Go module, and strace",
        needs: &[&ETCD_3_5, &KUBECTL, &STRACE, &FAKETIME],
        steps: &[
            Step::Check("kube-apiserver", || Kubernetes::prepare().map_err(|e| e.to_string())),
            Step::Tests(|t| t.needs("kubernetes")),
        ],
    },
    Group {
        name: "mysql",
        about: "everything that needs MariaDB",
        needs: &[&MARIADB, &FAKETIME],
        steps: &[Step::Tests(|t| t.needs("mysql"))],
    },
    Group {
        name: "nats",
        about: "everything that needs NATS servers, and strace",
        needs: &[&NATS_2_9, &NATS_2_10, &STRACE, &FAKETIME],
        steps: &[Step::Tests(|t| t.needs("nats"))],
    },
    Group {
        name: "redis",
        about: "everything that needs Redis servers, and strace",
        needs: &[&REDIS, &STRACE, &FAKETIME],
        steps: &[Step::Tests(|t| t.needs("redis"))],
    },
    Group {
        name: "postgres",
        about: "everything that needs PostgreSQL and PgBouncer",
        needs: &[&POSTGRES, &PGBOUNCER, &FAKETIME],
        steps: &[Step::Tests(|t| t.needs("postgres"))],
    },
    Group {
        name: "zookeeper",
        about: "everything that needs ZooKeeper servers, strace and Java",
        needs: &[&ZOOKEEPER_3_8, &ZOOKEEPER_3_9, &JAVA, &STRACE, &FAKETIME],
        steps: &[Step::Tests(|t| t.needs("zookeeper"))],
    },
];
