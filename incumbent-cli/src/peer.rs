//! `peer`: a state for a new peer, and a peer that only votes.

use std::io;
use std::process::ExitCode;

use incumbent::peers::{Listing, Voter, add, init, init_to_join, remove};
use incumbent::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::args::{PeerAction, PeerAddArgs, PeerInitArgs, PeerRemoveArgs, PeerRunArgs};
use crate::narrator::Narrator;
use crate::output::{self, answer, print, print_json};
use crate::report::{Level, Report, Reporter};
use crate::run::{Caught, Wish, listen};
use crate::store::Store;
use crate::{exit, text};

pub(crate) fn peer(action: PeerAction) -> ExitCode {
    match action {
        PeerAction::Init(args) => output::conclude(args.json, make(&args)),
        PeerAction::Run(args) => take_part(&args),
        PeerAction::Add(PeerAddArgs { peer: (name, address), store, json }) => answer(json, async {
            let store = Store::choose(&store, None)?;
            told(json, &name, add(&store.url, store.settings, &name, &address, waits).await?)
        }),
        PeerAction::Remove(PeerRemoveArgs { name, store, json }) => answer(json, async {
            let store = Store::choose(&store, None)?;
            told(json, &name, remove(&store.url, store.settings, &name, waits).await?)
        }),
    }
}

#[derive(Serialize)]
struct Changed<'a> {
    peer: &'a str,
    changed: bool,
    version: Option<u64>,
    peers: Option<&'a str>,
}

fn waits(what: String) {
    eprintln!("waits {what}");
}

fn told(json: bool, peer: &str, made: Option<Listing>) -> Result<ExitCode> {
    let code = if made.is_some() { exit::OK } else { exit::NO };
    if json {
        let (version, peers) =
            (made.as_ref().map(|list| list.version), made.as_ref().map(|list| &*list.peers));
        print_json(&Changed { peer, changed: made.is_some(), version, peers })?;
    } else {
        let text = match made {
            Some(Listing { version, peers, .. }) => {
                format!(
                    "list {version} is durable at majorities of itself and of the one before: peers={peers}\n"
                )
            }
            None => "another change was made at the same time, and this one was not; try again\n".to_owned(),
        };
        print(text.as_bytes())?;
    }
    Ok(ExitCode::from(code))
}

#[derive(Serialize)]
struct Made<'a> {
    state: &'a str,
    name: &'a str,
    cluster: &'a str,
}

fn make(args: &PeerInitArgs) -> Result<ExitCode> {
    let make = if args.join { init_to_join } else { init };
    make(&args.state, &args.name, &args.cluster)?;
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
            reporter.error(error.kind(), &text::error(&error));
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
