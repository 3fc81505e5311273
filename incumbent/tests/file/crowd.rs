//! Many elections, many connections, many terms, and someone who keeps replacing the lock file.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use testkit::{now, run_dir, wait_until};
use tokio::task::JoinSet;

use crate::LONG;
use crate::process::{PATIENCE, url};

fn names(dir: &Path) -> Vec<String> {
    let files = fs::read_dir(dir).unwrap().map(|file| file.unwrap().file_name());
    files.map(|name| name.into_string().unwrap()).collect()
}

#[tokio::test]
async fn a_thousand_campaigns_leave_two_files_per_election() {
    let dir = run_dir("thousand");
    let connection = incumbent::connect(&url(&dir, LONG)).await.unwrap();
    let mut tasks = JoinSet::new();
    for election in 0..20 {
        let election = connection.election(format!("e{election}"));
        tasks.spawn(async move {
            for campaign in 0..50 {
                election.candidate(format!("c{campaign}")).run(async |_| ()).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    drop(connection);
    // The thread of the connection cleans up behind it.
    assert!(wait_until(PATIENCE, || names(&dir).len() == 1 + 2 * 20), "{:?}", names(&dir));
    let open = || {
        let all = fs::read_dir("/proc/self/fd").unwrap().flatten().flat_map(|fd| fs::read_link(fd.path()));
        all.filter(|path| path.starts_with(&dir)).count()
    };
    assert!(!cfg!(target_os = "linux") || wait_until(PATIENCE, || open() == 0), "{} are left open", open());
}

/// More than the limit of inotify instances: the rest looks at intervals.
#[tokio::test]
async fn more_connections_than_the_kernel_tells_of_changes() {
    let dir = run_dir("connections");
    let mut connections = Vec::new();
    for _ in 0..150 {
        connections.push(incumbent::connect(&url(&dir, LONG)).await.unwrap());
    }
    let begin = now();
    let (last, others) = connections.split_last().unwrap();
    let first = others[0].election("billing");
    let (elected, wait) = tokio::sync::oneshot::channel();
    let mut elected = Some(elected);
    let work = tokio::spawn(async move {
        let work = |leadership: incumbent::Leadership| {
            elected.take().map(|elected| elected.send(()));
            async move { leadership.stopping().await }
        };
        first.candidate("first").run_until(tokio::time::sleep(Duration::from_secs(1)), work).await
    });
    wait.await.unwrap();
    last.election("billing").candidate("last").run(async |_| ()).await.unwrap();
    assert!(now().since(begin) < LONG / 2);
    work.await.unwrap().unwrap();
}

/// A commit that meets a replaced lock file proves nothing; if it did, two would lead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_file_that_keeps_being_replaced_lets_nobody_in_twice() {
    let dir = run_dir("replaced");
    let over = Arc::new(AtomicBool::new(false));
    let vandal = {
        let (dir, over) = (dir.clone(), over.clone());
        std::thread::spawn(move || {
            let mut replaced = 0;
            while !over.load(Ordering::Relaxed) {
                fs::write(dir.join("vandal"), "").unwrap();
                fs::rename(dir.join("vandal"), dir.join("billing.lock")).unwrap();
                std::thread::sleep(Duration::from_micros(300 + 700 * (replaced % 7)));
                replaced += 1;
            }
            replaced
        })
    };
    let leading = Arc::new(AtomicU64::new(0));
    let terms = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    let end = now() + Duration::from_secs(8);
    for id in 0..4 {
        let connection = incumbent::connect(&url(&dir, Duration::from_secs(3))).await.unwrap();
        let (leading, terms) = (leading.clone(), terms.clone());
        tasks.spawn(async move {
            while now() < end {
                let work = async |_| {
                    assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0, "two leaders at once");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    leading.fetch_sub(1, Ordering::SeqCst);
                    terms.fetch_add(1, Ordering::SeqCst);
                };
                let shutdown = tokio::time::sleep(end.since(now()));
                connection
                    .election("billing")
                    .candidate(format!("c{id}"))
                    .run_until(shutdown, work)
                    .await
                    .unwrap();
            }
        });
    }
    tasks.join_all().await;
    over.store(true, Ordering::Relaxed);
    let (replaced, terms) = (vandal.join().unwrap(), terms.load(Ordering::SeqCst));
    println!("{terms} terms, {replaced} lock files");
    assert!(terms > 2 && replaced > 100, "{terms} terms, {replaced} lock files: the test proves nothing");
}
