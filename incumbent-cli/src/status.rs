//! `status`: who leads, who wants to, and how large the checkpoint is.

use std::process::ExitCode;

use incumbent::{Contender, Leader, Observation};
use serde::Serialize;

use crate::args::StatusArgs;
use crate::output::{Answer, answer, lines, print, print_json, table};
use crate::store::Store;
use crate::{exit, text};

#[derive(Serialize)]
struct Report<'a> {
    election: &'a str,
    backend: &'a str,
    leader: Option<&'a Leader>,
    leads_for_ms: Option<u64>,
    candidates: Option<&'a [Contender]>,
    checkpoint_bytes: Option<usize>,
}

pub(crate) fn status(args: &StatusArgs) -> ExitCode {
    answer(args.json, show(args))
}

async fn show(args: &StatusArgs) -> Answer {
    let (store, connection) = Store::open(&args.store).await?;
    let election = connection.election(args.election.as_str());
    let Observation { leader, candidates } = election.observe().await?;
    let checkpoint = election.checkpoint()?.get().await?.map(|value| value.len());
    let backend = store.shown();
    let report = Report {
        election: args.election.as_str(),
        backend: &backend,
        leader: leader.as_ref(),
        leads_for_ms: leader.as_ref().and_then(text::age).map(crate::report::ms),
        candidates: candidates.as_deref(),
        checkpoint_bytes: checkpoint,
    };
    if args.json {
        print_json(&report)?;
    } else {
        print(for_people(&report).as_bytes())?;
    }
    Ok(ExitCode::from(if leader.is_some() { exit::OK } else { exit::NO }))
}

fn for_people(report: &Report<'_>) -> String {
    let mut rows = table(&[]);
    rows.add_row(["election", report.election]);
    rows.add_row(["backend", report.backend]);
    match report.leader {
        None => {
            rows.add_row(["leader", "nobody"]);
        }
        Some(leader) => {
            let kind = if leader.contender.is_foreign() { " (a client of another kind)" } else { "" };
            rows.add_row(["leader".to_owned(), format!("{}{kind}", text::visible(&leader.contender.id))]);
            let address = leader.contender.address.as_deref().unwrap_or("-");
            rows.add_row(["address", &text::visible(address)]);
            rows.add_row([
                "token".to_owned(),
                leader.token.map_or("-".to_owned(), |token| token.to_string()),
            ]);
            rows.add_row(["leads for".to_owned(), text::age(leader).map_or("-".to_owned(), text::span)]);
        }
    }
    let candidates = match report.candidates {
        None => "the backend cannot tell".to_owned(),
        Some([]) => "none".to_owned(),
        Some(candidates) => {
            candidates.iter().map(|one| text::visible(&one.id)).collect::<Vec<_>>().join(", ")
        }
    };
    rows.add_row(["candidates".to_owned(), candidates]);
    let checkpoint = report.checkpoint_bytes.map_or("none".to_owned(), |bytes| format!("{bytes} bytes"));
    rows.add_row(["checkpoint".to_owned(), checkpoint]);
    lines(&rows)
}
