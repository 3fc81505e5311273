//! Tokens of the file backend: they rise, whatever the wall clock says.

use std::fs;

use testkit::run_dir;

use crate::LONG;
use crate::process::{Candidate, SHORT, url};

#[tokio::test]
async fn tokens_rise_although_the_clock_is_behind() {
    let dir = run_dir("tokens");
    // As left behind when the clock was a year ahead.
    let ahead: u64 = 4_000_000_000_000_000;
    let header = format!(r#"{{"v":1,"election":"billing","version":5,"token":{ahead}}}"#);
    fs::write(dir.join("billing.record"), format!("{header}\n{{\"v\":1,\"holder\":null,\"ttl_ms\":1000}}"))
        .unwrap();
    let election = incumbent::connect(&url(&dir, LONG)).await.unwrap().election("billing");
    for nth in 1..4 {
        let token =
            election.candidate("a").run(async |leadership| leadership.token().unwrap()).await.unwrap();
        assert_eq!(token.0, ahead + nth);
    }
}

/// No term is better than two with one token.
#[test]
fn a_token_that_cannot_rise_is_not_given_again() {
    let dir = run_dir("greatest");
    let header = format!(r#"{{"v":1,"election":"billing","version":5,"token":{}}}"#, u64::MAX);
    let record = dir.join("billing.record");
    fs::write(&record, format!("{header}\n{{\"v\":1,\"holder\":null,\"ttl_ms\":1000}}")).unwrap();
    let candidate = Candidate::start(&url(&dir, SHORT), "a");
    let trouble = candidate.line("trouble Corrupt", 1).text;
    assert!(trouble.contains("remove the record"), "{trouble}");
    assert_eq!(candidate.count("elected "), 0);
    fs::remove_file(&record).unwrap();
    candidate.elected(1);
}

#[tokio::test]
async fn tokens_rise_although_the_record_was_deleted() {
    let dir = run_dir("tokens");
    let election = incumbent::connect(&url(&dir, LONG)).await.unwrap().election("billing");
    let mut last = None;
    for _ in 0..5 {
        let token = election.candidate("a").run(async |leadership| leadership.token()).await.unwrap();
        assert!(token > last, "{token:?} > {last:?}");
        last = token;
        fs::remove_file(dir.join("billing.record")).unwrap();
    }
}

#[tokio::test]
async fn a_checkpoint_is_fenced_and_outlives_its_connection() {
    let dir = run_dir("checkpoint");
    let old = {
        let election = incumbent::connect(&url(&dir, LONG)).await.unwrap().election("billing");
        let work = async |leadership: incumbent::Leadership| {
            leadership.checkpoint().put(b"one\ntwo").await.unwrap();
            leadership.token().unwrap()
        };
        election.candidate("a").run(work).await.unwrap()
    };
    let election = incumbent::connect(&url(&dir, LONG)).await.unwrap().election("billing");
    let work = async |leadership: incumbent::Leadership| {
        let found = leadership.checkpoint().get().await.unwrap();
        assert_eq!(found.as_deref(), Some(&b"one\ntwo"[..]));
        election.checkpoint().unwrap().put_under(old, b"late").await.unwrap_err().kind()
    };
    let late = election.candidate("b").run(work).await.unwrap();
    assert_eq!(late, incumbent::ErrorKind::Fenced);
}
