//! What people and tools do to the files of an election that somebody leads.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread::sleep;

use testkit::{Signal, now, run_dir, wait_until};

use crate::LONG;
use crate::process::{Candidate, PATIENCE, SHORT, url};

fn record(dir: &Path) -> PathBuf {
    dir.join("billing.record")
}

/// Puts `text` into a file's place as a careful editor would.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("edited");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

fn alive(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|kind| kind == "alive")).collect()
}

/// Curator #692: a leader whose record an operator has deleted goes on for ever.
#[test]
fn a_deleted_record_ends_the_term_at_once() {
    let dir = run_dir("deleted");
    let leader = Candidate::start(&url(&dir, LONG), "a");
    let (_, token) = leader.elected(1);
    for nth in 1..=3 {
        let deleted = now();
        fs::remove_file(record(&dir)).unwrap();
        let lost = leader.line("lost Superseded", nth);
        assert!(lost.at.since(deleted) < LONG / 4, "a hint, not the next renewal, must tell");
        let (_, newer) = leader.elected(nth + 1);
        assert!(newer > token);
    }
}

#[test]
fn a_deleted_record_lets_nobody_in_twice() {
    let dir = run_dir("deleted-twice");
    let both = ["a", "b"].map(|id| Candidate::start(&url(&dir, LONG), id));
    let elected = || both.iter().map(|one| one.count("elected ")).sum::<usize>();
    let lost = || both.iter().map(|one| one.count("lost ")).sum::<usize>();
    assert!(wait_until(PATIENCE, || elected() == 1));
    for round in 1..=5 {
        fs::remove_file(record(&dir)).unwrap();
        assert!(wait_until(PATIENCE, || elected() == round + 1 && lost() == round));
    }
    sleep(SHORT);
    assert_eq!((elected(), lost()), (6, 5));
}

/// Nobody knows who holds what cannot be read, so it is waited for as long as any holder may believe in itself.
#[test]
fn a_record_that_cannot_be_read_ends_the_term_and_is_waited_for() {
    for (name, text) in [("garbage", "&%$\u{0}garbage"), ("empty", ""), ("headless", "{\"v\":1}")] {
        let dir = run_dir(name);
        let leader = Candidate::start(&url(&dir, SHORT), "a");
        let (_, token) = leader.elected(1);
        let standby = Candidate::start(&url(&dir, SHORT), "b");
        standby.line("leader a", 1);
        let damaged = now();
        replace(&record(&dir), text);
        leader.line("lost ", 1);
        let elected = || leader.count("elected ") + standby.count("elected ");
        assert!(wait_until(PATIENCE, || elected() == 2), "{name}");
        let next = if standby.count("elected ") == 1 { standby.elected(1) } else { leader.elected(2) };
        assert!(next.0.since(damaged) >= SHORT, "{name}: {:?} is no ttl", next.0.since(damaged));
        assert!(next.1 > token, "{name}");
    }
}

/// An editor that writes the file in place, with the version and the token it had.
#[test]
fn a_record_edited_in_place_ends_the_term() {
    let dir = run_dir("edited");
    let leader = Candidate::start(&url(&dir, SHORT), "a");
    leader.elected(1);
    let text = fs::read_to_string(record(&dir)).unwrap();
    let other = "\"nonce\":\"0123456789abcdef0123456789abcdef\"";
    let (before, after) = text.split_once("\"nonce\":").unwrap();
    fs::write(record(&dir), format!("{before}{other}{}", &after[34..])).unwrap();
    leader.line("lost Superseded", 1);
    // The holder that the record now names never renews.
    leader.elected(2);
}

/// It was retried for ever, and reads that worked were told as the end of the trouble.
#[test]
fn a_lock_that_is_a_directory_is_refused_with_what_to_do() {
    let dir = run_dir("lock-directory");
    fs::create_dir(dir.join("billing.lock")).unwrap();
    let candidate = Candidate::start(&url(&dir, SHORT), "a");
    let trouble = candidate.line("trouble Corrupt", 1).text;
    assert!(trouble.contains("move the directory away"), "{trouble}");
    fs::remove_dir(dir.join("billing.lock")).unwrap();
    candidate.elected(1);
}

#[test]
fn a_newer_format_is_refused_unchanged() {
    let newer_body = "{\"v\":1,\"election\":\"billing\",\"version\":5,\"token\":7}\n{\"v\":2}";
    for (name, text) in [("newer-header", "{\"v\":2}\n?"), ("newer-body", newer_body)] {
        let dir = run_dir(name);
        fs::write(record(&dir), text).unwrap();
        let candidate = Candidate::start(&url(&dir, SHORT), "a");
        let trouble = candidate.line("trouble Corrupt", 1).text;
        assert!(trouble.contains("update this program"), "{trouble}");
        sleep(SHORT * 2);
        assert_eq!(candidate.count("elected "), 0);
        assert_eq!(fs::read_to_string(record(&dir)).unwrap(), text);
        // Once the newer release has left, it goes on.
        fs::remove_file(record(&dir)).unwrap();
        candidate.elected(1);
    }
}

/// A release that writes more than this one understands, and whose leader has died with its machine.
#[test]
fn a_record_of_a_later_release_with_more_fields_is_understood() {
    let dir = run_dir("more-fields");
    let text = concat!(
        r#"{"v":1,"election":"billing","version":5,"token":7,"checksum":"abc"}"#,
        "\n",
        r#"{"v":1,"holder":{"id":"later","nonce":"0123456789abcdef0123456789abcdef","zone":"b"},"ttl_ms":1000,"priority":3}"#
    );
    fs::write(record(&dir), text).unwrap();
    let candidate = Candidate::start(&url(&dir, SHORT), "a");
    candidate.line("leader later", 1);
    candidate.elected(1);
}

#[test]
fn what_is_no_plain_file_is_refused_and_blocks_nobody() {
    let dir = run_dir("no-file");
    fs::create_dir(record(&dir)).unwrap();
    let candidate = Candidate::start(&url(&dir, SHORT), "a");
    assert!(candidate.line("trouble ", 1).text.contains("not a plain file"));
    fs::remove_dir(record(&dir)).unwrap();
    candidate.elected(1);
    std::os::unix::fs::symlink("/dev/zero", dir.join("link")).unwrap();
    fs::rename(dir.join("link"), record(&dir)).unwrap();
    candidate.line("lost ", 1);
    let trouble = |line: &str| line.starts_with("trouble ") && line.contains("symbolic link");
    candidate.proc.wait_line(trouble, PATIENCE);
    fs::remove_file(record(&dir)).unwrap();
    candidate.elected(2);

    let identity = dir.join("authority");
    fs::remove_file(&identity).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&identity).status().unwrap().success());
    let refused = Candidate::start(&url(&dir, SHORT), "b").line("refused ", 1).text;
    assert!(refused.contains("cannot be understood; restore it"), "{refused}");
}

/// A later release wrote it, or somebody by hand: its leader goes on as before, and does not write all the time.
#[test]
fn a_request_to_hand_over_that_cannot_be_understood_is_ignored() {
    let dir = run_dir("odd-request");
    let leader = Candidate::start(&url(&dir, LONG), "a");
    leader.elected(1);
    let version = || {
        let text = fs::read_to_string(record(&dir)).unwrap();
        let header: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        header["version"].as_u64().unwrap()
    };
    let before = version();
    for text in ["garbage", "{\"v\":2,\"election\":\"billing\",\"version\":1,\"token\":1}"] {
        replace(&dir.join("billing.handover"), text);
        sleep(SHORT);
    }
    let renewed = version() - before;
    assert!(renewed <= 4, "{renewed} renewals in a seventh of the ttl");
    assert_eq!((leader.count("trouble "), leader.count("lost ")), (0, 0), "{}", leader.proc.transcript());
}

#[test]
fn an_unlinked_or_replaced_lock_file_changes_nothing() {
    let dir = run_dir("lock");
    let leader = Candidate::start(&url(&dir, SHORT), "a");
    leader.elected(1);
    let standby = Candidate::start(&url(&dir, SHORT), "b");
    standby.line("leader a", 1);
    let lock = dir.join("billing.lock");
    // Someone keeps the old one locked for ever: it is not the election's any more.
    let old = File::open(&lock).unwrap();
    assert!(wait_until(PATIENCE, || old.try_lock().is_ok()));
    fs::remove_file(&lock).unwrap();
    sleep(SHORT * 2);
    replace(&lock, "");
    sleep(SHORT * 2);
    assert_eq!((leader.count("lost "), leader.count("elected ")), (0, 1), "{}", leader.proc.transcript());
    assert_eq!(standby.count("elected "), 0);
    leader.proc.signal(Signal::KILL);
    standby.elected(1);
}

/// Without its liveness file a leader leads on; only its death is not seen any more, so its lease is waited for.
#[test]
fn an_unlinked_or_replaced_liveness_file_lets_nobody_in() {
    for replaced in [false, true] {
        let dir = run_dir("liveness");
        let leader = Candidate::start(&url(&dir, SHORT), "a");
        leader.elected(1);
        let files = alive(&dir);
        assert_eq!(files.len(), 1);
        let standby = Candidate::start(&url(&dir, SHORT), "b");
        standby.line("leader a", 1);
        if replaced {
            replace(&files[0], "nobody has locked this one");
        } else {
            fs::remove_file(&files[0]).unwrap();
        }
        sleep(SHORT * 2);
        assert_eq!((leader.count("lost "), leader.count("elected ")), (0, 1), "{}", leader.proc.transcript());
        assert_eq!(standby.count("elected "), 0);
        let killed = now();
        leader.proc.signal(Signal::KILL);
        let (at, _) = standby.elected(1);
        // Since its last renewal, that is.
        assert!(at.since(killed) > SHORT / 3, "{:?}", at.since(killed));
    }
}
