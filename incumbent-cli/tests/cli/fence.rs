//! `fence`: what operators see and do.

use incumbent::fence::file::FileFence;
use incumbent::{Authority, ErrorKind, FencingToken, HighWater};

use crate::harness::{World, ended};

fn mark(authority: &str, token: u64) -> HighWater {
    HighWater { authority: Authority::new(authority), token: FencingToken(token) }
}

#[test]
fn a_fence_that_saw_no_token_is_a_no() {
    let world = World::new();
    assert_eq!(
        world.output(&["fence", "show", "report.fence"]),
        (1, "no token was seen yet\n".into(), String::new())
    );
    let (code, out, _) = world.output(&["fence", "show", "report.fence", "--json"]);
    assert_eq!((code, out.as_str()), (1, "{\"v\":1,\"mark\":null}\n"));
}

/// A writer that was refused names the authority; with it an operator moves the fence, and the old authority is out.
#[test]
fn an_operator_moves_a_fence_to_another_authority() {
    let world = World::new();
    let fence = FileFence::new(world.path("report.fence"));
    fence.raise(&mark("old", 900)).expect("it is new");
    let refused = fence.raise(&mark("new", 3)).expect_err("another authority");
    assert!(refused.to_string().contains("`incumbent fence --help`"), "{refused}");
    assert!(refused.to_string().contains("this one is of new"), "{refused}");

    let (code, out, err) = world.output(&["fence", "adopt", "report.fence", "--authority=new", "--token=2"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(out, "before  token 900 of old\nnow     token 2 of new\n");
    assert_eq!(world.output(&["fence", "show", "report.fence"]).1, "token 2 of new\n");
    fence.raise(&mark("new", 3)).expect("it was adopted");
    assert_eq!(fence.raise(&mark("old", 901)).expect_err("the old one is out").kind(), ErrorKind::Fenced);
    let (_, out, _) = world.output(&["fence", "adopt", "report.fence", "--authority=newer", "--json"]);
    let expected = r#"{"v":1,"before":{"authority":"new","token":3},"mark":{"authority":"newer","token":0}}"#;
    assert_eq!(out.trim_end(), expected);
}

#[test]
fn a_fence_that_cannot_be_read_is_an_error_and_stays() {
    let world = World::new();
    std::fs::write(world.path("report.fence"), "garbage").expect("written");
    for arguments in
        [&["fence", "show", "report.fence"][..], &["fence", "adopt", "report.fence", "--authority=a"]]
    {
        let (code, out, err) = world.output(arguments);
        assert_eq!((code, out.as_str()), (125, ""));
        assert!(err.contains("not a fence's mark"), "{err}");
    }
    assert_eq!(world.read("report.fence"), "garbage");

    assert_eq!(ended(&world.shell("mkfifo pipe")).0, 0);
    let (code, out, err) = world.output(&["fence", "show", "pipe"]);
    assert_eq!((code, out.as_str()), (125, ""));
    assert!(err.contains("cannot read") && err.contains("no regular file"), "{err}");
}

#[test]
fn the_command_that_moves_a_fence_in_etcd_is_printed() {
    let world = World::new();
    let (code, out, err) = world.output(&["fence", "etcd", "ledger/fence", "--authority=it's", "--token=7"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(out, "etcdctl put -- 'ledger/fence' 'v1 7 it'\\''s'\n");
}

#[test]
fn the_sql_of_a_fence_is_printed() {
    let world = World::new();
    let (code, out, _) = world.output(&["fence", "sql"]);
    assert_eq!(code, 0);
    assert!(out.contains("\nCREATE TABLE IF NOT EXISTS incumbent_fence ("), "{out}");
    let statements = out.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
    assert_eq!(statements.matches(';').count(), 1, "all but the table is in comments: {out}");

    let adopt = ["fence", "sql", "--adopt=o'billing", "--authority=new", "--token=2"];
    let (code, out, _) = world.output(&adopt);
    assert_eq!(code, 0);
    assert!(out.contains("VALUES ('o''billing', 1, 'new', 2)"), "{out}");
    assert_eq!(world.output(&["fence", "sql", "--adopt=billing"]).0, 2, "whose tokens?");
    assert_eq!(world.output(&["fence", "sql", "--dialect=oracle"]).0, 2);
}
