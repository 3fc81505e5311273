//! The parent role: holds a lease, starts a command under a guardian, prints events and obeys lines on its stdin.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use incumbent_core::FencingToken;
use incumbent_guardian::{Guardian, GuardianEvent, LeaseFileWriter, StartSpec, clock, own_program};
use serde::{Deserialize, Serialize};

pub(crate) const ROLE: &str = "parent";

/// What the parent is to do, as one JSON argument.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) dir: PathBuf,
    pub(crate) argv: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) lease_ms: u64,
    pub(crate) lead_ms: u64,
    /// `billing`, if not given.
    pub(crate) election: Option<String>,
    /// The cgroup to enter beforehand.
    pub(crate) cgroup: Option<PathBuf>,
    /// A file to lock, whose descriptor is held by the whole tree.
    pub(crate) lock: Option<PathBuf>,
    /// Sent directly after the start.
    pub(crate) early_signal: Option<i32>,
    /// Leave the start to a line on stdin.
    pub(crate) standby: bool,
    /// Started before the guardian, without one.
    pub(crate) older_child: Option<Vec<OsString>>,
    /// Runs under a second guardian.
    pub(crate) bystander: Option<Vec<OsString>>,
    /// Leave stdin to the command.
    pub(crate) no_orders: bool,
}

/// A line on stdout.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Line {
    Guardian {
        pid: i32,
        lease_file: PathBuf,
    },
    /// With the moment of its delivery, in ns on the boot clock.
    Event {
        event: GuardianEvent,
        at: u64,
    },
}

pub(crate) fn main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let plan: Plan = serde_json::from_str(args.next().unwrap().to_str().unwrap()).unwrap();
    if let Some(cgroup) = &plan.cgroup {
        std::fs::write(cgroup.join("cgroup.procs"), "0").unwrap();
    }
    if let Some(argv) = &plan.older_child {
        let mut child = Command::new(&argv[0]).args(&argv[1..]).stdin(Stdio::null()).spawn().unwrap();
        std::thread::spawn(move || child.wait());
        // Start times are told apart by hundredths of a second.
        std::thread::sleep(Duration::from_millis(50));
    }
    let good_for = Duration::from_millis(plan.lease_ms);
    let token = FencingToken(42);
    let election = plan.election.as_deref().unwrap_or("billing").parse().unwrap();
    let mut lease = LeaseFileWriter::create(&plan.dir, &election, token, clock::now() + good_for).unwrap();

    let bystander = plan.bystander.clone().map(|argv| {
        let lease = LeaseFileWriter::create(&plan.dir, &election, token, clock::now() + good_for).unwrap();
        let guardian = Guardian::spawn(&own_program().unwrap(), |_| {}).unwrap();
        guardian.start(StartSpec {
            argv,
            env: Vec::new(),
            cwd: None,
            lease_file: lease.path().to_owned(),
            token,
            kill_lead: Duration::ZERO,
            hold: Vec::new(),
        });
        (guardian, lease)
    });

    let (done, is_done) = mpsc::channel();
    let guardian = Guardian::spawn(&own_program().unwrap(), move |event| {
        let empty = event == GuardianEvent::Empty;
        print(&Line::Event { event, at: clock::now().as_nanos() });
        if empty {
            done.send(()).unwrap();
        }
    })
    .unwrap();
    print(&Line::Guardian { pid: guardian.pid() as i32, lease_file: lease.path().to_owned() });

    let hold = plan.lock.iter().map(|path| {
        let file = File::create(path).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        file.into()
    });
    let spec = StartSpec {
        argv: plan.argv.clone(),
        env: plan.env.clone(),
        cwd: plan.cwd.clone(),
        lease_file: lease.path().to_owned(),
        token,
        kill_lead: Duration::from_millis(plan.lead_ms),
        hold: hold.collect(),
    };
    let mut spec = Some(spec);
    if !plan.standby {
        guardian.start(spec.take().unwrap());
    }
    if let Some(signal) = plan.early_signal {
        guardian.signal(signal);
    }

    // Not joined: it ends with the process.
    std::thread::spawn(move || {
        let orders = (!plan.no_orders).then(|| std::io::stdin().lock().lines().map_while(Result::ok));
        for line in orders.into_iter().flatten() {
            match line.split_once(' ').unwrap_or((&line, "")) {
                ("signal", number) => guardian.signal(number.parse().unwrap()),
                ("kill", _) => guardian.kill(),
                ("start", _) => guardian.start(spec.take().unwrap()),
                ("renew", ms) => {
                    lease.set_deadline(clock::now() + Duration::from_millis(ms.parse().unwrap())).unwrap();
                }
                ("end", _) => lease.end().unwrap(),
                other => panic!("what is {other:?}?"),
            }
        }
        // Keeps the guardian and the lease, as a parent whose driver hangs would.
        loop {
            std::thread::park();
        }
    });
    is_done.recv().unwrap();
    if bystander.is_some() {
        loop {
            std::thread::park();
        }
    }
    ExitCode::SUCCESS
}

fn print(line: &Line) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(line).unwrap()).unwrap();
    out.flush().unwrap();
}
