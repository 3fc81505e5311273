//! `cargo xtask conformance BACKEND|all`: the rules on one backend or on each, with the counts that take too long for every test run;
//! at the end a table of every rule on every backend.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use clap::{Args, ValueEnum};
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

use crate::Result;
use crate::workspace;

#[derive(Args)]
pub(crate) struct Options {
    /// The backend, or all
    #[arg(value_name = "BACKEND|all", value_parser = backends)]
    backends: Backends,
    /// Only the cases whose names contain this, as in `r4` or `h_many`
    filters: Vec<String>,
    /// How many terms, and how many elections, rule H looks back on [default: 10000 on one node, 500 on three members]
    #[arg(long, value_name = "N")]
    terms: Option<u32>,
}

#[derive(Clone)]
struct Backends(Vec<Backend>);

fn backends(text: &str) -> Result<Backends> {
    if text == "all" {
        return Ok(Backends(Backend::value_variants().to_vec()));
    }
    Backend::from_str(text, false).map(|backend| Backends(vec![backend])).map_err(|_| {
        let known: Vec<_> = Backend::value_variants().iter().map(|backend| backend.name()).collect();
        format!("known are {}, and all", known.join(", "))
    })
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
    Mysql,
    /// One server and three
    Nats,
    /// One server, and a primary with a replica
    Redis,
    /// Directly, and through a transaction pooler
    Postgres,
    /// Both versions on one node, the newer one on three members
    Zookeeper,
}

impl Backend {
    fn name(self) -> String {
        self.to_possible_value().expect("none is hidden").get_name().to_owned()
    }

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
            Backend::Mysql => {
                &[("mysql_single", 10_000), ("mysql_replicated", 500), ("mysql_wall_clock", 500)]
            }
            Backend::Nats => &[("nats_single", 10_000), ("nats_cluster", 500), ("nats_wall_clock", 500)],
            Backend::Redis => {
                &[("redis_single", 10_000), ("redis_replicated", 500), ("redis_wall_clock", 500)]
            }
            Backend::Postgres => &[("postgres_single", 10_000), ("postgres_wall_clock", 500)],
            Backend::Zookeeper => {
                &[("zookeeper_single", 10_000), ("zookeeper_cluster", 500), ("zookeeper_wall_clock", 500)]
            }
        }
    }
}

pub(crate) fn run(options: &Options) -> Result {
    let (mut failed, mut verdicts) = (Vec::new(), Verdicts::default());
    for backend in &options.backends.0 {
        for (target, terms) in backend.targets() {
            let terms = options.terms.unwrap_or(*terms).to_string();
            let mut cargo = workspace::cargo(&["test", "-q", "-p", "incumbent-conformance", "--locked"]);
            cargo.args(["--test", target, "--", "--terms", &terms]).args(&options.filters);
            let cannot = |error| format!("cannot run cargo: {error}");
            let mut child = cargo.stdout(Stdio::piped()).spawn().map_err(cannot)?;
            let output = child.stdout.take().expect("stdout was piped");
            for line in BufReader::new(output).lines().map_while(std::result::Result::ok) {
                println!("{line}");
                verdicts.read(&backend.name(), &line);
            }
            if !child.wait().map_err(cannot)?.success() {
                failed.push(*target);
            }
        }
    }
    println!("{}", verdicts.table());
    if failed.is_empty() { Ok(()) } else { Err(format!("the rules are broken on {}", failed.join(", "))) }
}

/// What came out of the cases of one rule on one backend.
#[derive(Default)]
struct Verdict {
    ok: u32,
    not_applicable: u32,
    failed: u32,
}

/// By rule and backend, in the order in which they came.
#[derive(Default)]
struct Verdicts {
    rules: Vec<String>,
    backends: Vec<String>,
    cells: BTreeMap<(String, String), Verdict>,
}

impl Verdicts {
    /// Takes the next line of the output of a suite: `test [LABEL::]CASE ... VERDICT`.
    fn read(&mut self, backend: &str, line: &str) {
        let Some((case, verdict)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "))
        else {
            return;
        };
        let (label, case) = case.split_once("::").unwrap_or((backend, case));
        // Two backends share a program.
        if !label.starts_with(backend) {
            return;
        }
        let rule = case.split('_').next().unwrap_or(case).to_owned();
        for (list, new) in [(&mut self.rules, rule.as_str()), (&mut self.backends, backend)] {
            if !list.iter().any(|old| old == new) {
                list.push(new.to_owned());
            }
        }
        let cell = self.cells.entry((rule, backend.to_owned())).or_default();
        match verdict {
            _ if verdict.starts_with("ok") => cell.ok += 1,
            _ if verdict.starts_with("n/a") => cell.not_applicable += 1,
            _ => cell.failed += 1,
        }
    }

    /// How many cases of each rule hold on each backend, over all its servers.
    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(ASCII_MARKDOWN);
        table.set_header(std::iter::once("rule").chain(self.backends.iter().map(String::as_str)));
        for rule in &self.rules {
            let cell = |backend: &String| match self.cells.get(&(rule.clone(), backend.clone())) {
                None => "-".to_owned(),
                Some(Verdict { failed: 0, ok: 0, .. }) => "n/a".to_owned(),
                Some(Verdict { failed: 0, ok, not_applicable: 0 }) => format!("{ok} ok"),
                Some(Verdict { failed: 0, ok, not_applicable }) => format!("{ok} ok, {not_applicable} n/a"),
                Some(Verdict { failed, .. }) => format!("{failed} FAILED"),
            };
            table.add_row(std::iter::once(rule.clone()).chain(self.backends.iter().map(cell)));
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_counted_by_rule_and_backend() {
        let mut verdicts = Verdicts::default();
        for (backend, line) in [
            ("memory", "test r1_of_many ... ok <2.0s>"),
            ("memory", "test r1_over ... n/a: no disk"),
            ("memory", "test memory::r6_steps ... ok <3.1s>"),
            ("memory", "test file::r6_steps ... FAILED"),
            ("postgres", "test postgres_pooled::r1_of_many ... FAILED"),
            ("postgres", "test r6_steps ... n/a: done elsewhere"),
            ("postgres", "test result: ok. 61 passed; 0 failed; 5 n/a; finished in 149.61s"),
        ] {
            verdicts.read(backend, line);
        }
        let table = verdicts.table().to_string();
        let rows: Vec<Vec<&str>> =
            table.lines().map(|line| line.split('|').map(str::trim).collect()).collect();
        assert_eq!(rows[0], ["", "rule", "memory", "postgres", ""]);
        assert_eq!(rows[2], ["", "r1", "1 ok, 1 n/a", "1 FAILED", ""]);
        assert_eq!(rows[3], ["", "r6", "1 ok", "n/a", ""]);
    }
}
