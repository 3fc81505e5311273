//! The fence before an HTTP service, over real connections: two replicas of a service that share a fence on disk.
#![cfg(feature = "http")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use axum::routing::post;
use axum::{Extension, Router};
use incumbent::fence::file::FileFence;
use incumbent::fence::http::{FenceLayer, SharedFence};
use incumbent::{Authority, Error, ErrorKind, FencingToken, HighWater};
use tokio::sync::Notify;

fn mark(authority: &str, token: u64) -> HighWater {
    HighWater { authority: Authority::new(authority), token: FencingToken(token) }
}

/// A replica, on a thread of its own: `/charges` counts, `/slow` waits until it is told to end.
struct Replica {
    address: SocketAddr,
    charged: Arc<AtomicUsize>,
    slow: Arc<AtomicUsize>,
    end: Arc<Notify>,
}

impl Replica {
    fn start(fence: impl SharedFence, patience: Duration) -> Replica {
        let (charged, slow, end) = (Arc::<AtomicUsize>::default(), Arc::default(), Arc::<Notify>::default());
        let (counted, begun, told) = (charged.clone(), Arc::clone(&slow), end.clone());
        let charge = move |shown: Option<Extension<HighWater>>| async move {
            counted.fetch_add(1, Ordering::SeqCst);
            shown.map_or("read\n".to_owned(), |Extension(mark)| format!("charged under {}\n", mark.token))
        };
        let wait = move || async move {
            AtomicUsize::fetch_add(&begun, 1, Ordering::SeqCst);
            told.notified().await;
            "ended\n"
        };
        let app = Router::new()
            .route("/charges", post(charge.clone()).get(charge))
            .route("/slow", post(wait))
            .layer(FenceLayer::new(fence).patience(patience));
        let (tell, told) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
                tell.send(listener.local_addr().expect("an address")).expect("it listens");
                axum::serve(listener, app).await.expect("it serves");
            });
        });
        Replica { address: told.recv().expect("it serves"), charged, slow, end }
    }

    fn on_disk(fence: &Path) -> Replica {
        Replica::start(FileFence::new(fence), Duration::from_secs(60))
    }

    /// The status, and the whole answer.
    fn ask(&self, method: &str, path: &str, headers: &str) -> (u16, String) {
        ask(self.address, method, path, headers)
    }

    fn charge(&self, authority: &str, token: u64) -> (u16, String) {
        self.ask("POST", "/charges", &shown(authority, token))
    }
}

fn shown(authority: &str, token: u64) -> String {
    format!("Fencing-Token: {token}\r\nFencing-Authority: {authority}\r\n")
}

fn ask(address: SocketAddr, method: &str, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it serves");
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n")
        .expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("a status"), answer)
}

#[test]
fn what_one_replica_has_seen_all_refuse() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fence");
    let (one, two) = (Replica::on_disk(&path), Replica::on_disk(&path));
    for replica in [&one, &two, &one] {
        let (status, answer) = replica.charge("a", 5);
        assert!(status == 200 && answer.ends_with("charged under 5\n"), "{answer}");
    }
    assert_eq!(two.charge("a", 7).0, 200);
    for replica in [&one, &two] {
        let (status, answer) = replica.charge("a", 6);
        assert_eq!(status, 409, "{answer}");
        assert!(answer.contains("token 6 is older than 7") && answer.contains("problem+json"), "{answer}");
    }
    // A replica that starts anew knows it too.
    assert_eq!(Replica::on_disk(&path).charge("a", 5).0, 409);
    assert_eq!(one.charged.load(Ordering::SeqCst), 2, "what was refused was not passed on");

    // The election has moved for good.
    let (status, answer) = one.charge("b", 1);
    assert!(status == 409 && answer.contains("authority a"), "{answer}");
    FileFence::new(&path).adopt(&mark("b", 1)).unwrap();
    assert_eq!((one.charge("b", 1).0, two.charge("b", 2).0, two.charge("a", 9).0), (200, 200, 409));
}

#[test]
fn a_request_without_a_term_may_only_read() {
    let folder = tempfile::tempdir().unwrap();
    let replica = Replica::on_disk(&folder.path().join("fence"));
    assert_eq!(replica.ask("GET", "/charges", "").0, 200);
    let (status, answer) = replica.ask("POST", "/charges", "");
    assert!(status == 428 && answer.contains("send fencing-token and fencing-authority"), "{answer}");
    let (status, answer) =
        replica.ask("POST", "/charges", "Fencing-Token: seven\r\nFencing-Authority: a\r\n");
    assert!(status == 400 && answer.contains("no number"), "{answer}");
    assert_eq!(replica.charged.load(Ordering::SeqCst), 1);
}

/// What was admitted cannot be recalled: the successor's first request comes when it is over.
#[test]
fn a_newer_term_begins_when_the_requests_of_the_older_one_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fence");
    let (replica, fence) = (Replica::on_disk(&path), FileFence::new(&path));
    let address = replica.address;
    let old: Vec<_> =
        (0..2).map(|_| thread::spawn(move || ask(address, "POST", "/slow", &shown("a", 5)))).collect();
    assert!(testkit::wait_until(Duration::from_secs(30), || replica.slow.load(Ordering::SeqCst) == 2));
    let new = thread::spawn(move || ask(address, "POST", "/charges", &shown("a", 6)));
    assert!(testkit::wait_until(Duration::from_secs(30), || fence.stored().unwrap() == Some(mark("a", 6))));
    assert_eq!(replica.charge("a", 5).0, 409, "already it is the newer one that counts");
    thread::sleep(Duration::from_millis(200));
    assert_eq!(replica.charged.load(Ordering::SeqCst), 0, "it waits for the two");
    replica.end.notify_waiters();
    for old in old {
        assert_eq!(old.join().unwrap().0, 200);
    }
    assert_eq!(new.join().unwrap().0, 200);
}

#[test]
fn a_newer_term_is_told_to_come_again_if_the_older_requests_do_not_end() {
    let folder = tempfile::tempdir().unwrap();
    let fence = FileFence::new(folder.path().join("fence"));
    let replica = Replica::start(fence, Duration::from_millis(200));
    let address = replica.address;
    let old = thread::spawn(move || ask(address, "POST", "/slow", &shown("a", 5)));
    assert!(testkit::wait_until(Duration::from_secs(30), || replica.slow.load(Ordering::SeqCst) == 1));
    let (status, answer) = replica.charge("a", 6);
    assert!(status == 503 && answer.to_lowercase().contains("retry-after"), "{answer}");
    replica.end.notify_waiters();
    assert_eq!(old.join().unwrap().0, 200);
    assert_eq!(replica.charge("a", 6).0, 200);
}

#[test]
fn a_fence_that_cannot_be_asked_lets_nobody_pass_and_tells_no_secret() {
    let replica = Replica::start(
        |_: HighWater| async { Err(Error::new(ErrorKind::Unavailable, "no route to ledger-7:hunter2")) },
        Duration::from_secs(60),
    );
    let (status, answer) = replica.charge("a", 5);
    assert!(status == 503 && answer.contains("nothing was done") && !answer.contains("hunter2"), "{answer}");
    assert_eq!(replica.charged.load(Ordering::SeqCst), 0);
}
