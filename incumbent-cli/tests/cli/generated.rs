//! Help, man pages and completions come from one definition; `docs/cli.md` is the help as a page.

use std::path::Path;

use crate::harness::World;

const COMMANDS: [&str; 14] = [
    "run",
    "check",
    "observe",
    "status",
    "resign",
    "transfer",
    "checkpoint",
    "fence",
    "peer",
    "simulate",
    "doctor",
    "backends",
    "completions",
    "man",
];

/// Set to write the page instead of comparing it.
const WRITE: &str = "INCUMBENT_WRITE_DOCS";

#[test]
fn the_page_is_the_help() {
    let world = World::new();
    let help = |words: &[&str]| {
        let (code, out, err) = world.output(&[words, &["--help"]].concat());
        assert_eq!((code, err.as_str()), (0, ""), "{words:?}");
        let title = [&["incumbent"], words].concat().join(" ");
        format!("## {title}\n\n```text\n{}\n```\n\n", out.trim_end())
    };
    let mut page = "# The command `incumbent`\n\nMade from `incumbent --help`; written by \
                    `INCUMBENT_WRITE_DOCS=1 cargo test -p incumbent-cli generated`.\n\n"
        .to_owned();
    page += &help(&[]);
    for command in COMMANDS {
        page += &help(&[command]);
        if command == "checkpoint" {
            page += &help(&["checkpoint", "get"]);
            page += &help(&["checkpoint", "put"]);
        }
        if command == "fence" {
            for action in ["show", "adopt", "etcd", "redis", "sql"] {
                page += &help(&["fence", action]);
            }
        }
        if command == "peer" {
            for action in ["init", "run", "add", "remove"] {
                page += &help(&["peer", action]);
            }
        }
    }
    let page = page.trim_end().to_owned() + "\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cli.md");
    if std::env::var_os(WRITE).is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(&path, &page).expect("written");
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == page,
        "docs/cli.md is not what --help prints; write it with {WRITE}=1 and look at the change"
    );
}

#[test]
fn the_page_knows_every_command() {
    let (_, out, _) = World::new().output(&["--help"]);
    let listed =
        out.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let mut listed: Vec<&str> = listed.filter_map(|line| line.split_whitespace().next()).collect();
    // It shows the same as --help.
    assert_eq!(listed.pop(), Some("help"));
    assert_eq!(listed, COMMANDS);
}

#[test]
fn help_is_a_command_too() {
    let world = World::new();
    assert_eq!(world.output(&["help"]), world.output(&["--help"]));
    assert_eq!(world.output(&["help", "checkpoint", "get"]), world.output(&["checkpoint", "get", "--help"]));
}

#[test]
fn every_command_has_a_man_page() {
    let world = World::new();
    let (code, out, _) = world.output(&["man"]);
    assert!(code == 0 && out.contains(".TH incumbent 1"), "{out}");
    for command in COMMANDS {
        let (code, out, err) = world.output(&["man", command]);
        assert_eq!(code, 0, "{err}");
        assert!(out.contains(".TH") && out.contains(command), "{command}: {out}");
    }
    let (code, out, err) = world.output(&["man", "checkpoint", "get"]);
    assert_eq!(code, 0, "{err}");
    let footer = concat!("\"incumbent ", env!("CARGO_PKG_VERSION"), "\"");
    assert!(
        out.lines().any(|line| line.starts_with(".TH incumbent-checkpoint-get") && line.contains(footer)),
        "{out}"
    );
    for (words, hint) in
        [(["man", "run", "get"], "run has no commands"), (["man", "fence", "get"], "known are show")]
    {
        let (code, _, err) = world.output(&words);
        assert_eq!(code, 2, "{err}");
        assert!(err.contains(hint), "{err}");
    }
}

#[test]
fn the_synopsis_of_run_sets_the_command_off() {
    let (_, out, _) = World::new().output(&["man", "run"]);
    let synopsis =
        out.lines().skip_while(|line| !line.starts_with(".SH SYNOPSIS")).nth(1).unwrap_or_default();
    assert!(synopsis.ends_with(r"<ELECTION> \-\- <COMMAND>..."), "{synopsis}");
}

#[test]
fn completions_are_scripts_that_their_shell_can_read() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, out, _) = world.output(&["completions", shell]);
        assert_eq!(code, 0, "{shell}");
        assert!(out.contains("no-wait") && out.contains("checkpoint"), "{shell}");
    }
    let process = world.shell("\"$INCUMBENT\" completions bash > completions && bash -n completions");
    assert_eq!(crate::harness::code(&process), 0, "{}", process.transcript());
}
