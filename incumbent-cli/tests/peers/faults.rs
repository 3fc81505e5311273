//! What can be wrong with peers, and must end well: wrong names, lists, clusters, secrets, certificates, states, frames, disks.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use testkit::{Proc, Signal, wait_until};

use crate::peers::{CLUSTER, Peers, place};
use crate::scenarios::harness::{SOON, World, code, ended, wait_leading};
use crate::scenarios::{JOB, TTL, refused, terms_of};

fn candidate(peers: &Peers, on: &str) -> Proc {
    peers.world.run(&["--on", on, "--id=a", TTL], JOB)
}

/// One that leads and then goes: all have met each other.
fn met() -> Peers {
    let peers = Peers::start(&["a"], 2, "5s");
    let a = candidate(&peers, &peers.url_of("a"));
    wait_leading(&a, 1);
    a.signal(Signal::TERM);
    code(&a);
    peers
}

/// A peer that is refused says so soon, whether it is a candidate or only votes, and so does the doctor.
#[track_caller]
fn told(peers: &Peers, on: &str, flag: &str, hint: &str) {
    let voter = Proc::spawn(peers.world.incumbent(&["peer", "run", "--on", on, flag]));
    let told = || voter.lines().iter().any(|line| line.text.contains(hint));
    assert!(wait_until(SOON, told), "{hint}: {}", voter.transcript());
    drop(voter);
    let (status, out, err) = peers.world.output(&["doctor", "--on", on, flag]);
    assert_eq!(status, 1, "{out}{err}");
    assert!(out.contains(hint), "{hint}: {out}");
    let candidate = peers.world.run(&["--on", on, "--id=a", flag], JOB);
    let told = || candidate.lines().iter().any(|line| line.text.contains(hint));
    assert!(wait_until(SOON, told), "{hint}: {}", candidate.transcript());
}

#[test]
fn two_nodes_with_one_name_are_told_apart() {
    let peers = met();
    // With a state of its own, it has promised nothing of what the first one promised.
    peers.init("twin", "a", CLUSTER);
    let twin = peers.url_of("a").replace("peer-a", "peer-twin");
    refused(&peers.world, &twin, "a has another state than when it was met first");
    told(&peers, &twin, TTL, "a has another state than when it was met first");
    let a = candidate(&peers, &peers.url_of("a"));
    wait_leading(&a, 1);
    // On one machine the address is taken as well.
    let twin = candidate(&peers, &twin);
    twin.wait_line(|line| line.contains("a cannot listen on 127.0.0.1:"), SOON);
    // And the state itself has room for one.
    let again = candidate(&peers, &peers.url_of("a"));
    again.wait_line(|line| line.contains("another process is this peer"), SOON);
    assert_eq!(a.try_wait(), None, "{}", a.transcript());
}

#[test]
fn lists_that_disagree_are_refused_and_both_are_named() {
    let peers = met();
    let elsewhere = testkit::Port::reserve();
    let there = format!("v2=127.0.0.1:{}", peers.port("v2"));
    let other = format!("v2=127.0.0.1:{}", elsewhere.number());
    refused(&peers.world, &peers.url_of("a").replace(&there, &other), &other);
    refused(&peers.world, &peers.url_of("a").replace(&there, &other), &there);
    let (status, _, err) = ended(&peers.world.run(&["--on", &peers.url_of("a"), "--ttl=6s"], JOB));
    assert_eq!(status, 125, "{err}");
    assert!(err.contains("ttl=5000ms") && err.contains("ttl=6000ms"), "{err}");
    told(&peers, &peers.url_of("a"), "--ttl=6s", "a was told raft ttl=6000ms");
    // One that comes for the first time has no list of its own to compare with, and is told by the others.
    let peers = Peers::start(&["a"], 2, "5s");
    let there = format!("v2=127.0.0.1:{}", peers.port("v2"));
    let other = there.replace("127.0.0.1", "localhost");
    told(&peers, &peers.url_of("a").replace(&there, &other), TTL, "both as list 1");
}

/// A machine was copied with all that is on it, and both run. (From its second list on a peer goes by the one in its state, so
/// that here the copy may listen elsewhere.)
#[test]
fn a_copied_state_in_a_second_process_is_refused_and_told_so() {
    let peers = Peers::start(&["a"], 3, "5s");
    let a = candidate(&peers, &peers.url_of("a"));
    wait_leading(&a, 1);
    let (status, out, err) = peers.world.output(&["peer", "remove", "v3", "--on", &peers.url()]);
    assert_eq!(status, 0, "{out}{err}");
    let (from, to) = (peers.state("a"), peers.state("copy"));
    fs::create_dir_all(to.join("notes")).expect("made");
    let port = testkit::Port::reserve();
    let copy = peers
        .url_of("a")
        .replace("peer-a", "peer-copy")
        .replace(&format!("a=127.0.0.1:{}", peers.port("a")), &format!("a=127.0.0.1:{}", port.number()));
    // Once the second list is on its disk.
    let copied = || {
        for file in ["state", "lock"] {
            fs::copy(from.join(file), to.join(file)).expect("copied");
        }
        let (_, out, _) = peers.world.output(&["doctor", "--on", &copy, TTL]);
        out.contains("another process at 127.0.0.1 is a as well")
    };
    assert!(wait_until(SOON, copied));
    told(&peers, &copy, TTL, "another process at 127.0.0.1 is a as well");
    // The first one is let in as before, and the others say why they refuse.
    let (status, out, err) = peers.world.output(&["doctor", "--on", &peers.url_of("a"), TTL]);
    assert!(status == 0 && !out.contains("another process"), "{out}{err}");
    let (_, lines) = peers.voter_lines("v1");
    assert!(lines.iter().any(|line| line.contains("another process at 127.0.0.1 is a as well")), "{lines:?}");
    assert_eq!((a.try_wait(), terms_of(&a)), (None, 1), "{}", a.transcript());
}

#[test]
fn a_peer_of_another_cluster_is_refused() {
    let peers = Peers::start(&["a"], 2, "5s");
    peers.init("foreign", "a", "other");
    let on = peers.url_of("a").replace("peer-a", "peer-foreign");
    refused(&peers.world, &on, "belongs to the cluster other");
    told(&peers, &on, TTL, "belongs to the cluster other");
}

#[test]
fn who_does_not_know_the_secret_is_refused() {
    let peers = Peers::start(&["a"], 2, "5s");
    let other = peers.world.path("other");
    fs::write(&other, "wrong-wrong-wrong-wrong").expect("written");
    let with = |on: &str| on.replace("/secret&", "/other&");
    refused(&peers.world, &with(&peers.url_of("a")), "knows another secret");
    told(&peers, &with(&peers.url_of("a")), TTL, "knows another secret");
    let on = peers.url().replace("/secret", "/other");
    let (status, out, err) = peers.world.output(&["status", "billing", "--on", &on]);
    assert_eq!((status, out.as_str()), (125, ""), "{err}");
    assert!(err.contains("knows another secret"), "{err}");
}

/// The connection is cut, a line is logged, and nothing else happens.
#[test]
fn garbage_oversized_and_truncated_frames_cut_the_connection_and_nothing_else() {
    let peers = Peers::start(&["a"], 2, "5s");
    let a = candidate(&peers, &peers.url_of("a"));
    let token = wait_leading(&a, 1);
    let frames: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\nHost: v1\r\n\r\n",
        &[0xff; 64],
        &[0, 0, 0, 4, 1, 2, 3, 4],
        &[0, 0, 0, 9, b'I', b'N', b'C', b'P', b'E', b'E', b'R', 1, 0xff],
        &[0, 0, 0, 8, b'I', b'N', b'C', b'P', b'E', b'E', b'R', 9],
        &[0, 0, 1, 0, b'I', b'N', b'C'],
    ];
    for round in 0..20 {
        for frame in frames {
            let mut stream = TcpStream::connect(("127.0.0.1", peers.port("v1"))).expect("connected");
            stream.write_all(frame).expect("written");
            if round % 2 == 0 {
                let _ = stream.shutdown(std::net::Shutdown::Write);
            } else if frame.len() != 7 {
                // It is cut, and not only left waiting.
                stream.set_read_timeout(Some(SOON)).expect("set");
                let mut rest = Vec::new();
                let _ = stream.read_to_end(&mut rest);
            }
        }
    }
    let (voter, lines) = peers.voter_lines("v1");
    assert!(lines.iter().any(|line| line.contains("is cut: ")), "{lines:?}");
    assert!(lines.len() < 30, "120 bad connections filled the log: {lines:?}");
    assert_eq!(voter.try_wait(), None);
    assert_eq!(a.try_wait(), None, "{}", a.transcript());
    let (status, out, err) = peers.world.output(&["status", "billing", "--on", &peers.url(), "--json"]);
    assert_eq!(status, 0, "{out}{err}");
    assert!(out.contains(&format!("\"token\":{token}")), "{out}");
}

#[test]
fn a_state_of_another_node_and_one_that_is_cut_changed_newer_or_gone_are_refused() {
    let peers = met();
    let path = peers.state("a").join("state");
    let good = fs::read(&path).expect("a state");
    let with = |bytes: &[u8], hint: &str| {
        fs::write(&path, bytes).expect("written");
        refused(&peers.world, &peers.url_of("a"), hint);
        assert_eq!(fs::read(&path).expect("a state"), bytes, "what was refused was changed");
    };
    with(&good[..good.len() / 2], "it is cut short");
    with(b"", "it is cut short");
    let mut changed = good.clone();
    changed[30] ^= 1;
    with(&changed, "its checksum does not match");
    let mut newer = good.clone();
    newer[8] = 7;
    with(&newer, "a newer release wrote it");
    with(&fs::read(peers.state("v1").join("state")).expect("a state"), "is the state of v1, not of a");
    fs::remove_file(&path).expect("removed");
    refused(&peers.world, &peers.url_of("a"), "incumbent peer init");
    // Nothing is made anew by itself, and what is there is not overwritten.
    assert!(!path.exists());
    fs::write(&path, &good).expect("written");
    let state = peers.state("a");
    let state = state.to_str().expect("UTF-8");
    let init = ["peer", "init", "--state", state, "--name", "a", "--cluster", CLUSTER];
    let (status, _, err) = peers.world.output(&init);
    assert_eq!(status, 125, "{err}");
    assert!(err.contains("is the state of a peer already"), "{err}");
    let a = candidate(&peers, &peers.url_of("a"));
    wait_leading(&a, 1);
}

/// A limit on the size of files acts as a disk without room does.
#[test]
fn a_full_disk_at_the_vote_gives_no_vote_until_there_is_room() {
    let mut peers = met();
    peers.stop_voters();
    let limited = |name: &str| {
        let on = peers.url_of(name);
        peers
            .world
            .shell(&format!("trap '' XFSZ; ulimit -f 0; exec \"$INCUMBENT\" peer run --on '{on}' --ttl=5s"))
    };
    let full = [limited("v1"), limited("v2")];
    full.iter().for_each(|voter| drop(voter.wait_line(|line| line.starts_with("peer: "), SOON)));
    let a = candidate(&peers, &peers.url_of("a"));
    for voter in &full {
        voter.wait_line(|line| line.starts_with("warning: this peer takes no part"), SOON);
    }
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(terms_of(&a), 0, "{}", a.transcript());
    drop(full);
    peers.restart_voters();
    wait_leading(&a, 1);
}

#[test]
fn one_peer_is_enough_and_an_even_number_is_warned_of() {
    let alone = Peers::start(&["a"], 0, "5s");
    let a = candidate(&alone, &alone.url_of("a"));
    let first = wait_leading(&a, 1);
    a.signal(Signal::KILL);
    drop(a);
    let a = candidate(&alone, &alone.url_of("a"));
    assert!(wait_leading(&a, 1) > first);
    let two = Peers::start(&["a"], 1, "5s");
    let a = candidate(&two, &two.url_of("a"));
    a.wait_line(|line| line.starts_with("warning: 2 peers stand the loss of 0 of them"), SOON);
    wait_leading(&a, 1);
    let (status, out, err) = two.world.output(&["doctor", "--on", &two.url()]);
    assert_eq!(status, 0, "{out}{err}");
    assert!(out.contains("2 peers stand the loss of 0"), "{out}");
}

/// Certificates of peers: whoever has none of the authority's, or one that has expired, is not spoken with.
#[test]
fn peers_show_certificates_and_one_that_has_expired_is_refused() {
    let peers = Peers::secured();
    let a = candidate(&peers, &peers.url_of("a"));
    wait_leading(&a, 1);
    let (status, out, err) = peers.world.output(&["status", "billing", "--on", &peers.url()]);
    assert_eq!(status, 0, "{out}{err}");
    a.signal(Signal::TERM);
    code(&a);
    let expired = peers.url_of("a").replace("/server.", "/expired.");
    refused(&peers.world, &expired, "certificate");
    let plain = place(&peers.plain_url(), "a");
    refused(&peers.world, &plain, "does not speak as a peer does");
    let world = World::new();
    let other = testkit::Certificates::make(&world.path(""));
    let foreign = peers.url_of("a").replace(
        &peers.world.path("server").display().to_string(),
        &other.server_cert.display().to_string().replace(".pem", ""),
    );
    refused(&peers.world, &foreign, "certificate");
    assert!(wait_until(SOON, || {
        let a = candidate(&peers, &peers.url_of("a"));
        wait_leading(&a, 1) > 0
    }));
}
