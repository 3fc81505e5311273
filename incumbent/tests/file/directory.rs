//! State directories that are missing, of somebody else, no directories, or taken away.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use incumbent::{CampaignEvent, ErrorKind, LossReason};
use testkit::run_dir;

use crate::LONG;
use crate::process::{Candidate, UID, WHERE, url};

/// Nobody, on every system that matters.
const NOBODY: u32 = 65534;

#[test]
fn a_missing_directory_is_made_for_its_owner_alone() {
    let dir = run_dir("missing").join("a/b c");
    let candidate = Candidate::start(&url(&dir, LONG).replace(' ', "%20"), "a");
    candidate.elected(1);
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(dir.clone()), 0o700);
    let files: Vec<_> = fs::read_dir(&dir).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 4, "{files:?}");
    for file in files {
        assert_eq!(mode(file.clone()), 0o600, "{}", file.display());
    }
}

#[tokio::test]
async fn a_path_that_is_a_file_is_refused() {
    let dir = run_dir("file");
    fs::write(dir.join("file"), "").unwrap();
    for path in [dir.join("file"), dir.join("file/below")] {
        let error = incumbent::connect(&format!("file:{}", path.display())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("must be a directory"), "{error}");
        assert_eq!(error.backend(), Some("file"));
    }
}

#[tokio::test]
async fn a_file_system_that_is_not_trusted_is_refused() {
    // Nothing can be made there, so a directory that exists must do.
    let error = incumbent::connect("file:/proc/self").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("0x9fa0"), "{error}");
}

#[test]
fn a_directory_that_cannot_be_written_is_refused() {
    let dir = run_dir("not-mine");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o555)).unwrap();
    for (path, verb) in [(dir.clone(), "write to"), (dir.join("missing/below"), "make")] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        if testkit::probe::is_root() {
            command.env(UID, NOBODY.to_string());
        }
        let candidate = Candidate::start_with(&url(&path, LONG), "a", command);
        let refused = candidate.line("refused ", 1).text;
        let what = format!("cannot {verb} the state directory {}: ", path.display());
        let found = refused.starts_with("refused ReadOnly") && refused.contains(&what);
        assert!(found && refused.contains("choose another"), "{refused}");
    }
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn what_is_no_place_or_cannot_work_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for url in ["file://host/path", "file:~/state", "file:/tmp?tttl=1s", "file:/tmp?ttl=100ms"] {
        let error = runtime.block_on(async {
            match incumbent::connect(url).await {
                Ok(connection) => connection.election("billing").candidate("a").campaign().unwrap_err(),
                Err(error) => error,
            }
        });
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}: {error}");
    }
}

#[test]
fn the_default_is_where_the_system_keeps_state() {
    let place = |uid: Option<u32>, home: Option<&str>, state: Option<&str>| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env_remove("HOME").env_remove("XDG_STATE_HOME");
        command.envs(home.map(|home| ("HOME", home)));
        command.envs(state.map(|state| ("XDG_STATE_HOME", state)));
        command.envs(uid.map(|uid| (UID, uid.to_string())));
        let candidate = Candidate::start_with(WHERE, "a", command);
        candidate.proc.wait_line(|line| line.starts_with("place ") || line.starts_with("refused "), LONG).text
    };
    let root = testkit::probe::is_root();
    if root {
        assert_eq!(place(None, Some("/h"), Some("/s")), "place /var/lib/incumbent");
    }
    let uid = root.then_some(NOBODY);
    assert_eq!(place(uid, Some("/h"), Some("/s")), "place /s/incumbent");
    assert_eq!(place(uid, Some("/h"), Some("relative")), "place /h/.local/state/incumbent");
    assert_eq!(place(uid, Some("/h"), None), "place /h/.local/state/incumbent");
    assert!(place(uid, None, None).starts_with("refused InvalidConfig"));
}

/// Its elections start anew, under another authority: tokens of the two do not compare.
#[tokio::test]
async fn a_removed_directory_ends_the_term_and_is_made_again() {
    let dir = run_dir("removed").join("state");
    let connection = incumbent::connect(&url(&dir, LONG)).await.unwrap();
    let mut campaign = connection.election("billing").candidate("a").campaign().unwrap();
    let mut authorities = Vec::new();
    while authorities.len() < 2 {
        match campaign.next().await.unwrap() {
            CampaignEvent::Elected(leadership) => {
                authorities.push(leadership.authority().to_string());
                if authorities.len() == 1 {
                    fs::remove_dir_all(&dir).unwrap();
                }
            }
            CampaignEvent::Lost(reason) => {
                assert!(matches!(reason, LossReason::Superseded(_)), "{reason:?}");
                campaign.work_stopped();
            }
            _ => {}
        }
    }
    assert!(authorities.iter().all(|authority| authority.starts_with("file:")), "{authorities:?}");
    assert_ne!(authorities[0], authorities[1]);
    let again = incumbent::connect(&url(&dir, LONG)).await.unwrap().election("other");
    let authority = again.candidate("b").run(async |leadership| leadership.authority().to_string());
    assert_eq!(authority.await.unwrap(), authorities[1]);
}
