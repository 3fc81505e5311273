//! The file fence: who is refused, what survives, and who waits for whom.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use incumbent::fence::file::FileFence;
use incumbent::{Authority, ErrorKind, FencingToken, HighWater, blocking};
use testkit::{Proc, Signal};

fn mark(authority: &str, token: u64) -> HighWater {
    HighWater { authority: Authority::new(authority), token: FencingToken(token) }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("what was written can be read")
}

#[test]
fn a_stale_writer_is_refused_and_what_was_written_stays() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let fence = FileFence::new(folder.path().join("fence"));
    assert_eq!(fence.stored().unwrap(), None);
    fence.raise(&mark("a", 1)).unwrap();
    fence.write(&mark("a", 1), &report, b"one").unwrap();
    fence.raise(&mark("a", 2)).unwrap();
    let refused = fence.write(&mark("a", 1), &report, b"late").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
    assert_eq!(read(&report), "one");
    fence.write(&mark("a", 2), &report, b"two").unwrap();
    assert_eq!(read(&report), "two");
}

/// The mark is on disk, not in the process that raised it.
#[test]
fn the_mark_survives_its_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fence");
    FileFence::new(&path).raise(&mark("a", 7)).unwrap();
    let reopened = FileFence::new(&path);
    assert_eq!(reopened.stored().unwrap(), Some(mark("a", 7)));
    assert_eq!(reopened.raise(&mark("a", 6)).unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(read(&path), "{\"v\":1,\"authority\":\"a\",\"token\":7}\n");
}

#[test]
fn another_authority_needs_an_operator() {
    let folder = tempfile::tempdir().unwrap();
    let fence = FileFence::new(folder.path().join("fence"));
    fence.raise(&mark("old cluster", 900)).unwrap();
    let refused = fence.raise(&mark("new cluster", 901)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    assert!(refused.to_string().contains("incumbent fence --help"), "{refused}");
    assert_eq!(fence.adopt(&mark("new cluster", 3)).unwrap(), Some(mark("old cluster", 900)));
    fence.raise(&mark("new cluster", 3)).unwrap();
    assert_eq!(fence.raise(&mark("old cluster", 901)).unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(fence.raise(&mark("new cluster", 2)).unwrap_err().kind(), ErrorKind::Fenced);
}

#[test]
fn a_fence_that_cannot_be_read_admits_nobody_and_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fence");
    let fence = FileFence::new(&path);
    for content in
        ["", "garbage", "{\"v\":1}", "{\"v\":2,\"authority\":\"a\",\"token\":1}", "{\"v\":9,\"epoch\":[]}"]
    {
        fs::write(&path, content).unwrap();
        for error in [fence.raise(&mark("a", 9)).unwrap_err(), fence.adopt(&mark("a", 9)).unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{content:?}: {error}");
        }
        assert_eq!(read(&path), content);
    }
    let newer = fence.raise(&mark("a", 9)).unwrap_err().to_string();
    assert!(newer.contains("format 9, newer than 1"), "{newer}");
}

#[test]
fn a_fence_that_cannot_be_written_admits_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let missing = FileFence::new(folder.path().join("no such folder/fence"));
    assert_eq!(missing.raise(&mark("a", 1)).unwrap_err().kind(), ErrorKind::NotFound);

    // No place for locks, and it is everywhere.
    let elsewhere = FileFence::new("/proc/fence").raise(&mark("a", 1)).unwrap_err();
    assert_eq!(elsewhere.kind(), ErrorKind::InvalidConfig, "{elsewhere}");

    // What stands in the way of the new file is a folder; that holds for root too.
    let path = folder.path().join("fence");
    let fence = FileFence::new(&path);
    fence.raise(&mark("a", 1)).unwrap();
    fs::create_dir(folder.path().join("fence.incumbent-new")).unwrap();
    let error = fence.raise(&mark("a", 2)).unwrap_err();
    assert!(error.to_string().contains("cannot write"), "{error}");
    assert_eq!(fence.stored().unwrap(), Some(mark("a", 1)));
}

/// What a writer that was killed in the middle leaves behind is no obstacle.
#[test]
fn a_half_written_file_is_overwritten_and_permissions_stay() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    fs::write(&report, "old").unwrap();
    fs::set_permissions(&report, fs::Permissions::from_mode(0o640)).unwrap();
    fs::write(folder.path().join("report.incumbent-new"), "half of what was meant to be a long rep").unwrap();
    let fence = FileFence::new(folder.path().join("fence"));
    fence.write(&mark("a", 1), &report, b"new").unwrap();
    assert_eq!(read(&report), "new");
    assert_eq!(fs::metadata(&report).unwrap().permissions().mode() & 0o777, 0o640);
    let mut names: Vec<String> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["fence", "fence.lock", "report"]);
}

/// A successor does not raise the fence under a writer that is inside; the writer finishes first.
#[test]
fn a_successor_waits_for_the_writer_that_is_inside() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let fence = FileFence::new(folder.path().join("fence"));
    let inside = fence.enter(&mark("a", 1)).unwrap();
    let impatient = fence.clone().patience(Duration::from_millis(50));
    let error = impatient.raise(&mark("a", 2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.is_retryable());
    let successor = thread::spawn({
        let (fence, report) = (fence.clone().patience(Duration::from_secs(60)), report.clone());
        move || {
            fence.raise(&mark("a", 2)).unwrap();
            read(&report)
        }
    });
    thread::sleep(Duration::from_millis(50));
    inside.replace(&report, b"the last of term 1").unwrap();
    drop(inside);
    assert_eq!(
        successor.join().unwrap(),
        "the last of term 1",
        "it lands before the successor starts, or not at all"
    );
    assert_eq!(fence.write(&mark("a", 1), &report, b"late").unwrap_err().kind(), ErrorKind::Fenced);
}

/// Another process, frozen while it holds the fence: nobody passes it, and when it is killed the way is free.
#[test]
fn a_frozen_holder_is_waited_for_and_a_killed_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let fence = FileFence::new(folder.path().join("fence")).patience(Duration::from_millis(200));
    fence.raise(&mark("a", 1)).unwrap();
    let mut command = Command::new("flock");
    command.arg(folder.path().join("fence.lock")).args(["sh", "-c", "echo inside; exec sleep 600"]);
    let holder = Proc::spawn(command);
    holder.wait_line(|line| line == "inside", Duration::from_secs(20));
    holder.signal_group(Signal::STOP);
    assert_eq!(fence.raise(&mark("a", 2)).unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(fence.stored().unwrap(), Some(mark("a", 1)));
    holder.signal_group(Signal::KILL);
    fence.patience(Duration::from_secs(20)).raise(&mark("a", 2)).unwrap();
}

/// Many writers with interleaved tokens: whatever the order, the last that was let in has the highest token.
#[test]
fn the_file_holds_the_write_of_the_highest_token() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let fence = FileFence::new(folder.path().join("fence")).patience(Duration::from_secs(60));
    let start = Barrier::new(4);
    thread::scope(|scope| {
        for writer in 0..4 {
            let (fence, report, start) = (&fence, &report, &start);
            scope.spawn(move || {
                start.wait();
                for round in 0..10 {
                    let token = round * 4 + writer;
                    match fence.write(&mark("a", token), report, token.to_string().as_bytes()) {
                        Ok(()) => {}
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Fenced, "{error}"),
                    }
                }
            });
        }
    });
    assert_eq!(fence.stored().unwrap(), Some(mark("a", 39)));
    assert_eq!(read(&report), "39");
}

#[test]
fn a_term_shows_its_own_mark_and_none_once_it_is_over() {
    let election = blocking::connect("memory:fence-file").unwrap().election("billing");
    let mut kept = None;
    let token = blocking::run(election.candidate("a"), |leadership| {
        let mark = leadership.mark().unwrap();
        assert_eq!(&mark.authority, leadership.authority());
        kept = Some(leadership);
        mark.token
    })
    .unwrap();
    let over = kept.unwrap();
    assert_eq!(over.token(), Some(token));
    assert_eq!(over.mark().unwrap_err().kind(), ErrorKind::NotLeader);
}
