//! Runs every script under `tests/scripts` and compares its trace with the one in the file.
//!
//! A script is a list of blocks, separated by empty lines: commands, `----`, the full expected trace. Lines that start
//! with `#` are comments. `REWRITE=1 cargo test -p incumbent-core` writes the traces anew; commit only differences
//! that you can explain. The commands stand in `script.rs`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::script::Runner;

#[test]
fn every_script_yields_its_trace() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut paths: Vec<PathBuf> =
        fs::read_dir(&folder).expect("the scripts").map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    assert!(paths.len() >= 20, "scripts are missing");
    let rewrite = std::env::var_os("REWRITE").is_some();
    let mut differ = Vec::new();
    for path in paths {
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        println!("{name}");
        let expected = fs::read_to_string(&path).expect("a script");
        let actual = run(&expected);
        if actual == expected {
            continue;
        }
        if rewrite {
            fs::write(&path, &actual).expect("a script that can be written");
        } else {
            println!("{}", difference(&expected, &actual));
            differ.push(name);
        }
    }
    assert!(differ.is_empty(), "the traces of {differ:?} differ (- expected, + actual)");
}

/// The script with the traces that its commands really yield.
fn run(script: &str) -> String {
    let mut runner = Runner::default();
    let mut blocks = Vec::new();
    for block in script.trim_end().split("\n\n") {
        let (head, _) = block.split_once("\n----").unwrap_or((block, ""));
        let commands: Vec<&str> = head.lines().filter(|line| !line.starts_with('#')).collect();
        if commands.is_empty() {
            blocks.push(head.to_owned());
        } else {
            blocks.push(format!("{head}\n----\n{}", runner.run(&commands).trim_end()));
        }
    }
    blocks.join("\n\n") + "\n"
}

/// The lines from the first that differs, with three before it.
fn difference(expected: &str, actual: &str) -> String {
    let same = expected.lines().zip(actual.lines()).take_while(|(e, a)| e == a).count();
    let part = |text: &str, mark: &str| {
        text.lines().skip(same).take(12).map(|line| format!("{mark} {line}\n")).collect::<String>()
    };
    let before: String =
        expected.lines().take(same).skip(same.saturating_sub(3)).map(|l| format!("  {l}\n")).collect();
    before + &part(expected, "-") + &part(actual, "+")
}
