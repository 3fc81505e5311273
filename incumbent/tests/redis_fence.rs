//! The Redis fence on a real server: who is refused, and that nothing comes between the check and the write.

#![cfg(feature = "redis")]

mod example;

use std::time::Duration;

use incumbent::fence::redis::{RedisFence, refusal};
use incumbent::{Authority, Error, ErrorKind, FencingToken, HighWater};
use testkit::{Proc, Redis, Signal};

fn mark(authority: &str, token: u64) -> HighWater {
    HighWater { authority: Authority::new(authority), token: FencingToken(token) }
}

struct Ledger {
    redis: Redis,
    fence: RedisFence,
}

impl Ledger {
    fn new() -> Ledger {
        Ledger {
            redis: Redis::single().start().expect("redis starts"),
            fence: RedisFence::new("ledger:fence"),
        }
    }

    fn run(
        &self,
        script: &str,
        mark: &HighWater,
        keys: &[&str],
        arguments: &[&str],
    ) -> Result<String, Error> {
        let [authority, token] = RedisFence::arguments(mark);
        let count = (1 + keys.len()).to_string();
        let command =
            [&["EVAL", script, &count, self.fence.key()], keys, &[&authority, &token], arguments].concat();
        self.redis.cli(&command).map_err(|error| {
            let text = error.to_string();
            // The command is part of the testkit's text, and the script has the word in it.
            let answer = text.rsplit_once("]: ").map_or(text.as_str(), |(_, answer)| answer);
            refusal(answer).unwrap_or_else(|| panic!("{text}"))
        })
    }

    fn charge(&self, mark: &HighWater, amount: &str) -> Result<String, Error> {
        let script = RedisFence::script("return redis.call('INCRBY', KEYS[2], ARGV[3])");
        self.run(&script, mark, &["ledger:total"], &[amount])
    }

    fn total(&self) -> String {
        self.redis.cli_ok(&["GET", "ledger:total"]).trim().to_owned()
    }
}

#[test]
fn an_older_token_writes_nothing_once_the_fence_is_raised() {
    let ledger = Ledger::new();
    ledger.charge(&mark("a", 17), "40").expect("admitted");
    ledger.charge(&mark("a", 17), "2").expect("the same leader again");
    ledger.run(&RedisFence::raise(), &mark("a", 18), &[], &[]).expect("raised");
    let refused = ledger.charge(&mark("a", 17), "1000").expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    assert!(refused.to_string().starts_with("token 17 is older than 18"), "{refused}");
    assert_eq!(ledger.total(), "42");
    ledger.charge(&mark("a", 18), "1").expect("the new leader");
    assert_eq!(ledger.total(), "43");
}

/// As numbers of Lua these would be equal, or in another order.
#[test]
fn tokens_are_compared_exactly() {
    let ledger = Ledger::new();
    for token in [9, 10, 99, 100, 1 << 53, (1 << 53) + 1, u64::MAX - 1, u64::MAX] {
        ledger.charge(&mark("a", token), "1").expect("a higher one");
        let refused = ledger.charge(&mark("a", token - 1), "1").expect_err("a lower one");
        assert_eq!(refused.kind(), ErrorKind::Fenced);
    }
}

#[test]
fn another_authority_is_refused_until_an_operator_adopts_it() {
    let ledger = Ledger::new();
    ledger.charge(&mark("a", 17), "1").expect("admitted");
    for token in [1, 17, 1000] {
        let refused = ledger.charge(&mark("b", token), "1").expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::Fenced);
        assert!(refused.to_string().contains("incumbent fence redis --adopt"), "{refused}");
    }
    ledger.run(RedisFence::adopt(), &mark("b", 5), &[], &[]).expect("adopted");
    assert!(ledger.charge(&mark("b", 4), "1").is_err());
    ledger.charge(&mark("b", 5), "1").expect("admitted");
    assert!(ledger.charge(&mark("a", 18), "1").is_err());
    assert_eq!(ledger.total(), "2");
}

#[test]
fn a_fence_of_a_newer_release_is_left_alone() {
    let ledger = Ledger::new();
    ledger.redis.cli_ok(&["HSET", "ledger:fence", "v", "2", "authority", "a", "token", "1"]);
    let refused = ledger.charge(&mark("a", 5), "1").expect_err("refused");
    assert!(refused.to_string().contains("newer release"), "{refused}");
    assert_eq!(ledger.redis.cli_ok(&["HGET", "ledger:fence", "token"]).trim(), "1");
}

/// What the command prints for an operator does what it says.
#[test]
fn the_adopting_command_runs_in_a_shell() {
    let ledger = Ledger::new();
    ledger.charge(&mark("a", 17), "1").expect("admitted");
    let text = ledger.fence.adopt_text(&mark("it's", 3));
    let cli = ledger.redis.cli_command();
    let program = format!(
        "{} -p {}",
        cli.get_program().display(),
        ledger.redis.endpoint().rsplit(':').next().expect("a port")
    );
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &text.replacen("redis-cli", &program, 1)]);
    for (name, value) in cli.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    assert!(shell.status().expect("a shell").success());
    ledger.charge(&mark("it's", 3), "1").expect("admitted");
}

#[test]
fn the_example_adds_under_one_token_after_the_other() {
    let ledger = Ledger::new();
    let folder = tempfile::tempdir().expect("a folder");
    let elections = format!("file:{}", folder.path().display());
    let start = || Proc::spawn(example::command("fenced_redis", &[&ledger.redis.url(), &elections]));
    let total_is = |process: &Proc| {
        let line = process.wait_line(|line| line.contains("the total is"), Duration::from_secs(60)).text;
        let token = line.split([' ', ':']).nth(1).and_then(|token| token.parse::<u64>().ok());
        token.unwrap_or_else(|| panic!("{line}"))
    };
    let first = start();
    let token = total_is(&first);
    let second = start();
    first.signal(Signal::INT);
    assert!(first.wait(Duration::from_secs(60)).success(), "{}", first.transcript());
    assert!(total_is(&second) > token);
    let stale = ledger.charge(&mark("whoever", token), "1").expect_err("another leads");
    assert_eq!(stale.kind(), ErrorKind::Fenced);
}
