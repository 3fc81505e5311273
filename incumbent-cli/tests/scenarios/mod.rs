//! What the command does on every server, whatever kind it is of: told once, run on each.
//!
//! A file `SERVER_run.rs` implements [`Store`], calls [`run_on!`], and adds what is special to that server.

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "../cli/harness.rs"]
pub(crate) mod harness;

mod outages;
mod terms;

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use testkit::{Cgroup, Proc};

use harness::{World, code, ended};
pub(crate) use outages::*;
pub(crate) use terms::*;

/// A job that notes its process and each step.
pub(crate) const JOB: &str = "echo $$ > \"pid-$INCUMBENT_ID\"; echo \"leading $INCUMBENT_TOKEN\"; \
                              while :; do echo x >> \"steps-$INCUMBENT_ID\"; sleep 0.02; done";

pub(crate) const TTL: &str = "--ttl=5s";

/// A kind of server, and what the scenarios must know of it.
pub(crate) trait Store: Sized {
    /// A ttl so long that only a message can wake a candidate, or the longest that the server keeps.
    const LONG_TTL: &str = "--ttl=1h";
    /// The ttl of a leader whose record somebody touches: where it is told of that, so long that it does not renew meanwhile.
    const TOUCHED_TTL: &str = TTL;
    /// The shortest ttl, where a new record is waited for as if somebody held it.
    const WAITS_FOR_NEW_RECORDS: Option<&str> = None;
    /// Whether nobody can tell after a restart what the store has lost.
    const RESTART_ENDS_TERMS: bool = false;
    /// Whether it knows who waits.
    const LISTS_CANDIDATES: bool = false;
    /// URLs of this kind that cannot work, and what is said of each.
    const BAD_URLS: &[(&str, &str)];

    /// A server with nothing on it.
    fn start() -> Self;

    /// A server for a ttl other than that of [`TTL`], where it must be told.
    fn start_for(_ttl: &'static str) -> Self {
        Self::start()
    }

    /// A server that lets nobody in who does not know a secret, unless `shared` is one; the URL that lets one in; the secret.
    fn secured(shared: &Self) -> (Option<Self>, String, &'static str);

    fn url(&self) -> String;

    /// Where the candidate `id` is to be told another URL than those who only ask.
    fn place(on: &str, _id: &str) -> String {
        on.to_owned()
    }

    /// The URL of a part of it where no other test works.
    fn room(&self, name: &str) -> String {
        format!("{}/{name}", self.url())
    }

    fn pause(&mut self);
    fn resume(&mut self);
    fn stop(&mut self);
    /// Starts it again on its data, and waits until it serves.
    fn restart(&mut self);
}

/// The scenarios as tests of this file: most of them on one server, each in a room of its own, some on servers that they may stop.
macro_rules! run_on {
    ($store:ty) => {
        static SHARED: std::sync::LazyLock<$store> =
            std::sync::LazyLock::new(<$store as scenarios::Store>::start);

        scenarios::run_on! { SHARED:
            a_standby_takes_over_from_a_leader_that_is_told_to_stop
            a_standby_takes_over_from_a_leader_that_is_killed
            a_standby_takes_over_from_a_leader_that_is_frozen
            what_frozen_keepers_left_is_dead_before_the_successor_on_their_machine_starts
            a_transfer_reaches_the_candidate_that_is_named
            a_leader_that_is_asked_to_resign_is_followed_by_another
            observers_are_told_of_every_leader
            status_and_doctor_know_the_store
            a_checkpoint_reaches_the_successor
            a_password_reaches_the_command_and_no_process_list
        }
        scenarios::run_on! { $store:
            a_store_that_is_frozen_under_a_leader_stops_the_job_in_time
            a_store_that_is_not_there_is_told_at_once_and_waited_for
            a_store_that_restarts_within_the_ttl_is_survived
            a_url_that_cannot_work_is_an_error_at_once
        }
    };
    (SHARED: $($scenario:ident)*) => {
        $(#[test] fn $scenario() { scenarios::$scenario(&*SHARED); })*
    };
    ($store:ty: $($scenario:ident)*) => {
        $(#[test] fn $scenario() { scenarios::$scenario::<$store>(); })*
    };
}
pub(crate) use run_on;

/// A part of a server, and a folder for the jobs that work there.
pub(crate) struct Room {
    pub(crate) world: World,
    pub(crate) on: String,
    pub(crate) place: fn(&str, &str) -> String,
}

impl Room {
    /// A part that no other test uses.
    pub(crate) fn apart<S: Store>(store: &S) -> Room {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        Room::at::<S>(store.room(&format!("room-{}", COUNT.fetch_add(1, Ordering::Relaxed))))
    }

    /// The part that a user has who names none.
    pub(crate) fn of<S: Store>(store: &S) -> Room {
        Room::at::<S>(store.url())
    }

    /// Where somebody has led and given up, so that nobody waits for a record that is new.
    pub(crate) fn at<S: Store>(on: String) -> Room {
        let room = Room { world: World::new(), on, place: S::place };
        if let Some(ttl) = S::WAITS_FOR_NEW_RECORDS {
            assert_eq!(code(&room.run(&[ttl], "exit 0")), 0);
        }
        room
    }

    pub(crate) fn run(&self, options: &[&str], script: &str) -> Proc {
        self.run_in(None, options, script)
    }

    pub(crate) fn run_in(&self, cgroup: Option<&Cgroup>, options: &[&str], script: &str) -> Proc {
        let id = options.iter().find_map(|option| option.strip_prefix("--id=")).unwrap_or("a");
        let on = (self.place)(&self.on, id);
        self.world.run_in(cgroup, &[&["--on", &on], options].concat(), script)
    }

    pub(crate) fn candidate(&self, id: &str) -> Proc {
        self.run(&[&format!("--id={id}"), TTL], JOB)
    }

    /// A command about the election `billing`: exit code, stdout, stderr.
    pub(crate) fn ask(&self, command: &str, options: &[&str]) -> (i32, String, String) {
        self.world.output(&[&[command, "billing", "--on", &self.on], options].concat())
    }

    /// The same, which must succeed: its stdout.
    #[track_caller]
    pub(crate) fn ask_ok(&self, command: &str, options: &[&str]) -> String {
        let (status, out, err) = self.ask(command, options);
        assert_eq!(status, 0, "{command}: {out}{err}");
        out
    }

    #[track_caller]
    fn status(&self) -> Value {
        serde_json::from_str(&self.ask_ok("status", &["--json"])).expect("JSON")
    }
}

/// A candidate with this URL ends with an error before the first term, which holds `hint` and none of the secrets that tests use.
#[track_caller]
pub(crate) fn refused(world: &World, url: &str, hint: &str) {
    let (status, out, err) = ended(&world.run(&["--on", url, TTL], JOB));
    assert_eq!((status, out.as_str()), (125, ""), "{url}: {err}");
    assert!(err.contains("error: ") && err.contains(hint), "{url}: {err}");
    assert!(!err.contains("wrong") && !err.contains("hunter2"), "{url}: a password is shown: {err}");
}

/// A candidate with this URL leads.
#[track_caller]
pub(crate) fn let_in<S: Store>(world: &World, url: &str) {
    let ttl = S::WAITS_FOR_NEW_RECORDS.unwrap_or(TTL);
    let process = world.run(&["--on", url, ttl], "exit 5");
    assert_eq!(code(&process), 5, "{}", process.transcript());
}

/// How often a job has said that it leads.
pub(crate) fn terms_of(process: &Proc) -> usize {
    process.lines().iter().filter(|line| line.text.starts_with("leading ")).count()
}
