//! The fence in etcd on real servers, by the tool that everyone has: who is refused, and that nothing comes between the check and
//! the write.

use std::io::Write;
use std::process::Stdio;

use incumbent::fence::etcd::EtcdFence;
use incumbent::{Admission, Authority, ErrorKind, FencingToken, HighWater, Result};
use testkit::{Etcd, Version};

const TOTAL: &str = "ledger/total";

fn mark(authority: &str, token: u64) -> HighWater {
    HighWater { authority: Authority::new(authority), token: FencingToken(token) }
}

struct Ledger {
    etcd: Etcd,
    fence: EtcdFence,
}

impl Ledger {
    fn new(version: Version) -> Ledger {
        let etcd = Etcd::single(version).start().expect("etcd starts");
        Ledger { etcd, fence: EtcdFence::new("ledger/fence") }
    }

    /// True if the comparison held and `then` was done.
    fn transaction(&self, compare: &str, then: &str) -> bool {
        let mut command = self.etcd.etcdctl_command();
        command.arg("txn").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("etcdctl starts");
        write!(child.stdin.take().expect("a pipe"), "{compare}\n\n{then}\n\n\n").expect("it reads");
        let output = child.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text.lines().any(|line| line == "SUCCESS")
    }

    fn get(&self, key: &str) -> Option<String> {
        let text = self.etcd.etcdctl_ok(&["get", key, "--print-value-only"]);
        (!text.is_empty()).then(|| text.trim_end_matches('\n').to_owned())
    }

    fn judge(&self, mark: &HighWater) -> Result<Admission> {
        EtcdFence::judge(self.get(self.fence.key()).as_deref().map(str::as_bytes), mark)
    }

    fn revision(&self) -> u64 {
        let text = self.etcd.etcdctl_ok(&["get", self.fence.key(), "--write-out=json"]);
        let number = text.split("\"mod_revision\":").nth(1).map(|rest| {
            rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a number")
        });
        number.unwrap_or(0)
    }

    fn raise(&self, mark: &HighWater) -> Result<()> {
        loop {
            let revision = self.revision();
            if self.judge(mark)? == Admission::Current {
                return Ok(());
            }
            let compare = format!("mod(\"{}\") = \"{revision}\"", self.fence.key());
            let put = format!("put {} \"{}\"", self.fence.key(), EtcdFence::value(mark));
            if self.transaction(&compare, &put) {
                return Ok(());
            }
        }
    }

    fn write(&self, mark: &HighWater, total: &str) -> Result<()> {
        let compare = format!("val(\"{}\") = \"{}\"", self.fence.key(), EtcdFence::value(mark));
        if self.transaction(&compare, &format!("put {TOTAL} {total}")) {
            return Ok(());
        }
        self.judge(mark).map(|judged| panic!("refused, and yet {judged:?}"))
    }
}

#[test]
fn an_older_token_writes_nothing_once_the_fence_is_raised() {
    for version in Version::ALL {
        let ledger = Ledger::new(version);
        ledger.raise(&mark("a", 17)).expect("raised");
        ledger.write(&mark("a", 17), "1").expect("admitted");
        ledger.write(&mark("a", 17), "2").expect("the same leader again");
        ledger.raise(&mark("a", 18)).expect("raised");
        ledger.raise(&mark("a", 18)).expect("once more");
        for refused in [ledger.write(&mark("a", 17), "1000"), ledger.raise(&mark("a", 17))] {
            let refused = refused.expect_err("refused");
            assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
        }
        assert_eq!(ledger.get(TOTAL).as_deref(), Some("2"));
        ledger.write(&mark("a", 18), "3").expect("admitted");

        // The election has moved for good.
        let refused = ledger.raise(&mark("it's b", 1)).expect_err("refused");
        assert!(refused.to_string().contains("authority a"), "{refused}");
        let adopt = ledger.fence.adopt_text(&mark("it's b", 1));
        let mut shell = std::process::Command::new("sh");
        let etcdctl = ledger.etcd.etcdctl_command();
        for (name, value) in etcdctl.get_envs() {
            shell.env(name, value.unwrap_or_default());
        }
        let program = etcdctl.get_program().to_str().expect("UTF-8");
        shell.args(["-c", &adopt.replacen("etcdctl", program, 1)]);
        assert!(shell.output().expect("a shell").status.success(), "{adopt}");
        ledger.raise(&mark("it's b", 1)).expect("there already");
        ledger.write(&mark("it's b", 1), "4").expect("admitted");
        assert_eq!(ledger.write(&mark("a", 99), "5").expect_err("refused").kind(), ErrorKind::Fenced);
    }
}

/// Of many who raise at once, the greatest stays, and nobody who was admitted before writes after it.
#[test]
fn of_many_who_raise_at_once_the_greatest_stays() {
    let ledger = Ledger::new(Version::V3_5);
    std::thread::scope(|scope| {
        for token in 1..=8 {
            let ledger = &ledger;
            scope.spawn(move || drop(ledger.raise(&mark("a", token))));
        }
    });
    assert_eq!(ledger.get(ledger.fence.key()).as_deref(), Some("v1 8 a"));
    assert!(ledger.write(&mark("a", 7), "1").is_err() && ledger.write(&mark("a", 8), "2").is_ok());
}
