//! elastic-agent PR #4542 and its like: a replica that lost once stayed a zombie. Here one elector wins and loses 100
//! times, each time in another way, and leads each time anew.

use std::time::Duration;

use incumbent_core::{
    Acquired, Answer, Authority, Call, Error, ErrorKind, FencingToken, Grant, Input, Observation, Renewed,
    StopReason,
};

use crate::invariants::Watched;
use crate::properties::elector;

#[test]
fn wins_and_loses_a_hundred_times() {
    let mut watched = Watched::new(elector(Duration::from_secs(15), Some(Duration::from_secs(30)), 1));
    for round in 1..=100 {
        lead(&mut watched, round);
        lose(&mut watched, round);
        watched.input(Input::WorkStopped);
        assert!(!watched.leads(), "round {round}");
    }
    assert_eq!(watched.elections, 100);
}

/// Lets time pass until a call of the wanted kind is under way; every release on the way succeeds.
fn until_call(watched: &mut Watched, wanted: fn(&Call) -> bool) {
    for _ in 0..100 {
        match watched.pending().map(|(id, call)| (id, call.clone())) {
            Some((_, call)) if wanted(&call) => return,
            Some((id, Call::Release(..))) => {
                watched.input(Input::Answer(id, Answer::Release(Ok(()))));
            }
            _ => {
                let next = watched.poll_timeout().expect("a candidate goes on for ever");
                watched.timeout(next);
            }
        }
    }
    panic!("the call never came");
}

fn answer(watched: &mut Watched, answer: Answer) {
    let (id, _) = watched.pending().expect("a call is under way");
    watched.input(Input::Answer(id, answer));
}

fn lead(watched: &mut Watched, token: u64) {
    until_call(watched, |call| matches!(call, Call::Acquire(_)));
    let grant = Grant {
        token: Some(FencingToken(token)),
        authority: Authority::new("cycles"),
        sent_at: watched.now(),
        ttl: watched.ttl(),
    };
    answer(watched, Answer::Acquire(Ok(Acquired::Granted(grant))));
    assert!(watched.leads(), "term {token} began");
}

fn lose(watched: &mut Watched, round: u64) {
    match round % 5 {
        // Told to go.
        0 => {
            watched.input(Input::Stop(StopReason::Resigned));
        }
        // Superseded.
        1 => {
            until_call(watched, |call| matches!(call, Call::Renew(..)));
            answer(watched, Answer::Renew(Ok(Renewed::Lost(Observation::default()))));
        }
        // Every renewal hangs.
        2 => {
            while watched.leads() {
                let next = watched.poll_timeout().expect("a deadline");
                watched.timeout(next);
            }
        }
        // Frozen for an hour.
        3 => {
            watched.timeout(watched.now() + Duration::from_secs(3600));
        }
        // Every renewal fails, until the work is told.
        _ => {
            for _ in 0..3 {
                until_call(watched, |call| matches!(call, Call::Renew(..)));
                let error = Error::new(ErrorKind::Unavailable, "the store is away");
                answer(watched, Answer::Renew(Err(error)));
            }
        }
    }
}
