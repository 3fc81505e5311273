//! `peer`: a state for a new peer, and a peer that only votes.

use std::io;
use std::process::ExitCode;

use incumbent::peers::{Voter, init};
use incumbent::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::args::{PeerAction, PeerInitArgs, PeerRunArgs};
use crate::narrator::Narrator;
use crate::output::{self, print, print_json};
use crate::report::{Level, Report, Reporter};
use crate::run::{Caught, Wish, listen};
use crate::store::Store;
use crate::{exit, text};

pub(crate) fn peer(action: PeerAction) -> ExitCode {
    match action {
        PeerAction::Init(args) => output::conclude(args.json, make(&args)),
        PeerAction::Run(args) => take_part(&args),
    }
}

#[derive(Serialize)]
struct Made<'a> {
    state: &'a str,
    name: &'a str,
    cluster: &'a str,
}

fn make(args: &PeerInitArgs) -> Result<ExitCode> {
    init(&args.state, &args.name, &args.cluster)?;
    let (state, name, cluster) = (args.state.to_string_lossy(), &args.name, &args.cluster);
    if args.json {
        print_json(&Made { state: &state, name, cluster })?;
    } else {
        print(format!("{state} is the state of peer {name} of {cluster} now\n").as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn take_part(args: &PeerRunArgs) -> ExitCode {
    let internal =
        |message: &str, error: io::Error| Error::new(ErrorKind::Internal, message).with_source(error);
    let signals = Caught::catch().map_err(|error| internal("signals cannot be taken", error));
    let narrator = match Narrator::start() {
        Ok(narrator) => narrator,
        Err(error) => return output::conclude(args.json, Err(internal("no thread can be started", error))),
    };
    let reporter = Reporter {
        narrator: narrator.clone(),
        election: String::new(),
        id: String::new(),
        program: String::new(),
        level: if args.verbose > 0 { Level::Verbose } else { Level::Normal },
        json: args.json,
    };
    let voted = signals.and_then(|signals| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| internal("the runtime cannot be started", error))?;
        runtime.block_on(vote(args, signals, reporter.clone()))
    });
    let code = match voted {
        Ok(()) => exit::OK,
        Err(error) => {
            reporter.error(&text::error(&error));
            exit::FAILED
        }
    };
    narrator.finish();
    ExitCode::from(code)
}

async fn vote(args: &PeerRunArgs, signals: Caught, mut reporter: Reporter) -> Result<()> {
    let store = Store::choose(&args.store, Some(&args.term()))?;
    let mut signals = signals
        .listen()
        .map_err(|error| Error::new(ErrorKind::Internal, "signals cannot be taken").with_source(error))?;
    reporter.id = store.peer_name().unwrap_or_default();
    listen(reporter.clone(), args.verbose > 1);
    let voter = Voter::start(&store.url, store.settings).await?;
    let address = voter.address().to_string();
    let cluster = voter.cluster().as_str();
    reporter.tell(&Report::Voting { address: &address, cluster, peers: voter.peers() });
    loop {
        match signals.next().await {
            Wish::Stop | Wish::PassOn { else_stop: true, .. } => return Ok(()),
            Wish::PassOn { .. } => {}
        }
    }
}
