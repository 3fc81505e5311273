//! `cargo xtask conformance BACKEND`: the rules on one backend, with the counts that take too long for every test run.

use clap::{Args, ValueEnum};

use crate::Result;
use crate::workspace;

#[derive(Args)]
pub(crate) struct Options {
    /// The backend
    backend: Backend,
    /// Only the cases whose names contain this, as in `r4` or `h_many`
    filters: Vec<String>,
    /// How many terms, and how many elections, rule H looks back on [default: 10000 on one node, 500 on three members]
    #[arg(long, value_name = "N")]
    terms: Option<u32>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Backend {
    Memory,
    File,
    /// One server and three
    Consul,
    /// Both versions, one node and three members
    Etcd,
    Kubernetes,
    /// One server, and a primary with a replica
    Redis,
    /// Directly, and through a transaction pooler
    Postgres,
}

impl Backend {
    /// The test targets, and how many terms each looks back on.
    fn targets(self) -> &'static [(&'static str, u32)] {
        match self {
            Backend::Memory => &[("memory", 10_000), ("wall_clock", 500)],
            Backend::File => &[("file", 10_000), ("wall_clock", 500)],
            Backend::Consul => {
                &[("consul_single", 10_000), ("consul_cluster", 500), ("consul_wall_clock", 500)]
            }
            Backend::Etcd => &[("etcd_single", 10_000), ("etcd_cluster", 500), ("etcd_wall_clock", 500)],
            Backend::Kubernetes => &[("kubernetes_single", 2_000), ("kubernetes_wall_clock", 500)],
            Backend::Redis => {
                &[("redis_single", 10_000), ("redis_replicated", 500), ("redis_wall_clock", 500)]
            }
            Backend::Postgres => &[("postgres_single", 10_000), ("postgres_wall_clock", 500)],
        }
    }
}

pub(crate) fn run(options: &Options) -> Result {
    let mut failed = Vec::new();
    for (target, terms) in options.backend.targets() {
        let terms = options.terms.unwrap_or(*terms).to_string();
        let mut cargo = workspace::cargo(&["test", "-q", "-p", "incumbent-conformance", "--locked"]);
        cargo.args(["--test", target, "--", "--terms", &terms]).args(&options.filters);
        let status = cargo.status().map_err(|error| format!("cannot run cargo: {error}"))?;
        if !status.success() {
            failed.push(*target);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("the rules are broken on {}", failed.join(", "))) }
}
