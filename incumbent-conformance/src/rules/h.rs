//! H, hygiene: after many elections no leaked session, lease, row or connection; no busy loop; no growth.

use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;

use futures_util::future::{ready, try_join_all};
use futures_util::{StreamExt, TryStreamExt, stream};
use incumbent_core::{Acquired, BootInstant, Claim, ElectionName, Renewed};

use super::{Rule, case};
use crate::clock::now;
use crate::stage::{Handle, Outcome, Stage, Stop, ensure};

pub(super) const RULE: Rule = Rule {
    id: "H",
    cases: &[
        case!(h_many_terms_leave_nothing_behind, alone),
        case!(h_many_elections_leave_nothing_behind, alone),
        case!(h_many_connections_leave_nothing_behind, alone),
        case!(h_candidates_that_wait_are_quiet, alone),
    ],
};

/// How many elections go on at a time where each has a name of its own: a store that waits for a new record takes one ttl for each.
const AT_A_TIME: usize = 50;
/// Elections that take turns.
const ELECTIONS: usize = 8;
/// What this process may remember of an election that nobody has anything to do with any more, in bytes: how far its tokens have
/// risen, and where the store is this process, its record.
const REMEMBERED: u64 = 2048;
/// By how much the memory of this process may grow: a share, and what an allocator may keep besides.
const GROWTH: (f64, u64) = (0.05, 256 * 1024);
const ROUNDS: u32 = 8;

/// Objects in the store and memory of this process, after a tenth of the terms and after all of them.
async fn h_many_terms_leave_nothing_behind(stage: &Stage) -> Outcome {
    let handles = [stage.open_unrecorded().await?, stage.open_unrecorded().await?];
    let elections: Vec<_> = (0..ELECTIONS).map(|_| stage.election()).collect();
    let warm_up = stage.terms.div_ceil(10).max(ELECTIONS * 4);
    many_terms(stage, &handles, &elections, 0..warm_up).await?;
    let objects_before = objects(stage).await?;
    let mut term = warm_up;
    does_not_grow(stage, 0, "terms", async || {
        let first = term;
        term += stage.terms;
        many_terms(stage, &handles, &elections, first..term).await
    })
    .await?;
    match objects_before {
        Some(before) => settles(stage, before + 2).await,
        None => Ok(()),
    }
}

async fn many_terms(
    stage: &Stage,
    handles: &[Handle; 2],
    elections: &[ElectionName],
    terms: Range<usize>,
) -> Outcome {
    for term in terms {
        // One lost answer among ten, one renewal among three, one look among five.
        let (handle, election) = (&handles[(term / ELECTIONS) % 2], &elections[term % ELECTIONS]);
        let claim = stage.claim(election, "c");
        let grant = stage.win(handle, &claim).await?;
        if term % 3 == 0 {
            stage.must_extend(handle, &claim, &grant).await?;
        }
        if term % 5 == 0 {
            stage.observe(handle, election).await?;
        }
        let known = (term % 10 != 0).then_some(&grant);
        stage.release(handle, &claim, known).await?;
    }
    Ok(())
}

/// As many elections as terms, each with a name of its own: what is kept for each name, in the store, of descriptors and of memory.
async fn h_many_elections_leave_nothing_behind(stage: &Stage) -> Outcome {
    let handles = [stage.open_unrecorded().await?, stage.open_unrecorded().await?];
    let warm_up = stage.terms.div_ceil(10);
    many_elections(stage, &handles, warm_up.max(AT_A_TIME)).await?;
    // A connection for what comes next may be made in the background.
    tokio::time::sleep(stage.ttl() / 2).await;
    let (descriptors_before, objects_before) = (entries("/proc/self/fd"), objects(stage).await?);
    let mut elections = 0;
    does_not_grow(stage, REMEMBERED, "elections", async || {
        elections += stage.terms as u64;
        many_elections(stage, &handles, stage.terms).await
    })
    .await?;
    if let Some(objects_before) = objects_before {
        settles(stage, objects_before + stage.harness.kept() * elections + 2).await?;
    }
    if let Some(before) = descriptors_before {
        // What ends in the background may need a moment.
        let end = now() + stage.takeover();
        while let Some(after) = entries("/proc/self/fd").filter(|after| *after > before + 3) {
            ensure!(now() < end, "{elections} elections took the descriptors from {before} to {after}");
            tokio::time::sleep(stage.ttl() / 10).await;
        }
    }
    Ok(())
}

/// Does the work again while the memory of this process grows by more than its allowance, up to [`ROUNDS`] times: threads that
/// a busy machine made this process start grow it once, what a backend forgets only after a while grows it for that while (peers keep
/// an election at hand until their promises are over), and what leaks grows it every time.
async fn does_not_grow(
    stage: &Stage,
    remembered: u64,
    what: &str,
    mut work: impl AsyncFnMut() -> Outcome,
) -> Outcome {
    for round in 1..=ROUNDS {
        let before = resident();
        work().await?;
        let (Some(before), Some(after)) = (before, resident()) else { break };
        let allowed = (before as f64 * GROWTH.0) as u64 + GROWTH.1 + remembered * stage.terms as u64;
        if after <= before + allowed {
            break;
        }
        ensure!(
            round < ROUNDS,
            "each time {} {what} let the process grow, at last from {before} to {after} bytes",
            stage.terms
        );
    }
    Ok(())
}

async fn many_elections(stage: &Stage, handles: &[Handle; 2], count: usize) -> Outcome {
    let elections = stream::iter(0..count).map(|number| one_election(stage, handles, number));
    elections.buffer_unordered(AT_A_TIME).try_for_each(|()| ready(Ok(()))).await
}

/// One term in an election of its own: some with hints, some with somebody who waits, some with a renewal or a look.
async fn one_election(stage: &Stage, handles: &[Handle; 2], number: usize) -> Outcome {
    let (handle, other) = (&handles[number % 2], &handles[(number + 1) % 2]);
    let election = stage.election();
    let claim = stage.claim(&election, "c");
    let mut hints = if number.is_multiple_of(4) { handle.watch(&election, Some(&claim)) } else { None };
    let grant = stage.win(handle, &claim).await?;
    if let Some(hints) = &mut hints {
        // Whether there is one or not, it listens from now on.
        let _ = tokio::time::timeout(Duration::from_millis(1), hints.next()).await;
    }
    if number % 4 == 1 {
        let rival = stage.claim(&election, "d");
        // On a very busy machine the grant may have run out by now: who wins is another case's matter.
        stage.answer(async || other.try_acquire(&rival).await).await?;
        stage.release(other, &rival, None).await?;
    }
    if number.is_multiple_of(3) {
        stage.must_extend(handle, &claim, &grant).await?;
    }
    if number.is_multiple_of(5) {
        stage.observe(other, &election).await?;
    }
    stage.release(handle, &claim, Some(&grant)).await
}

/// Connections that led and were dropped: descriptors and threads of this process, and objects in the store.
async fn h_many_connections_leave_nothing_behind(stage: &Stage) -> Outcome {
    let (Some(_), Some(_)) = (entries("/proc/self/fd"), entries("/proc/self/task")) else {
        return Err(Stop::NotApplicable("this system does not show a process's descriptors".to_owned()));
    };
    let election = stage.election();
    let lead = async || {
        let handle = stage.open_unrecorded().await?;
        let claim = stage.claim(&election, "c");
        let grant = stage.win(&handle, &claim).await?;
        stage.release(&handle, &claim, Some(&grant)).await?;
        Outcome::Ok(())
    };
    for _ in 0..3 {
        lead().await?;
    }
    tokio::time::sleep(stage.ttl() / 4).await;
    let before = (entries("/proc/self/fd"), entries("/proc/self/task"));
    let objects_before = objects(stage).await?;
    for _ in 0..30 {
        lead().await?;
    }
    // What ends in the background may need a moment.
    let end = now() + stage.takeover();
    loop {
        let after = (entries("/proc/self/fd"), entries("/proc/self/task"));
        if after.0 <= before.0.map(|n| n + 3) && after.1 <= before.1.map(|n| n + 3) {
            break;
        }
        ensure!(now() < end, "30 connections took descriptors and threads from {before:?} to {after:?}");
        tokio::time::sleep(stage.ttl() / 10).await;
    }
    if let Some(objects_before) = objects_before {
        settles(stage, objects_before + 2).await?;
    }
    Ok(())
}

/// A leader and three who wait, as electors would drive them, in a time in which nothing happens.
async fn h_candidates_that_wait_are_quiet(stage: &Stage) -> Outcome {
    const TTLS: u32 = 4;
    let election = stage.election();
    let handles =
        [stage.open_unrecorded().await?, stage.open_unrecorded().await?, stage.open_unrecorded().await?];
    let leader = stage.claim(&election, "leader");
    let grant = stage.win(&handles[0], &leader).await?;
    let waiting = [stage.claim(&election, "b"), stage.claim(&election, "c")];
    let requests_before = requests(stage).await?;
    let end = now() + stage.ttl() * TTLS;
    let leading = async {
        let hints = Cell::new(0);
        let renew = async {
            while now() < end {
                let sent_at = match stage.answer(async || handles[0].renew(&leader, &grant).await).await? {
                    Renewed::Extended { sent_at, .. } => sent_at,
                    Renewed::Lost(seen) => {
                        return Err(Stop::Failed(format!("the leader has lost: {seen:?}")));
                    }
                };
                tokio::time::sleep(
                    stage.ttl() / 3 - stage.ttl() / 100 - now().since(sent_at).min(stage.ttl() / 4),
                )
                .await;
            }
            Ok(())
        };
        let count = count_hints(&handles[0], &leader, end, &hints);
        tokio::join!(renew, count).0?;
        Outcome::Ok(hints.get())
    };
    let standing_by =
        waiting.iter().zip(&handles[1..]).map(|(claim, handle)| stand_by(stage, handle, claim, end));
    let (hints, tries) = tokio::try_join!(leading, try_join_all(standing_by))?;
    let per_ttl = |count: u32| count.div_ceil(TTLS);
    ensure!(
        per_ttl(hints) <= 2,
        "the leader got {hints} hints in {TTLS} ttls in which nothing happened to it"
    );
    for tries in tries {
        ensure!(per_ttl(tries) <= 16, "a standby was made to try {tries} times in {TTLS} ttls");
    }
    if let (Some(before), Some(after)) = (requests_before, requests(stage).await?) {
        let per_ttl = (after - before) / u64::from(TTLS);
        ensure!(
            per_ttl <= 60,
            "three candidates made {per_ttl} requests in each ttl in which nothing happened"
        );
    }
    Ok(())
}

async fn count_hints(handle: &Handle, claim: &Claim, end: BootInstant, hints: &Cell<u32>) {
    while now() < end {
        let Some(mut stream) = handle.watch(&claim.election, Some(claim)) else { return };
        while let Ok(Some(hint)) = tokio::time::timeout(end.since(now()), stream.next()).await {
            hints.set(hints.get() + 1);
            if hint.is_err() {
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Tries when there is a hint or the backend said so, as an elector does. Gives how often.
async fn stand_by(stage: &Stage, handle: &Handle, claim: &Claim, end: BootInstant) -> Outcome<u32> {
    let mut tries = 0;
    while now() < end {
        let mut hints = handle.watch(&claim.election, Some(claim));
        loop {
            tries += 1;
            let Acquired::Held { try_again, .. } =
                stage.answer(async || handle.try_acquire(claim).await).await?
            else {
                return Err(Stop::Failed("a standby won against a leader that renews".to_owned()));
            };
            let wait = try_again.min(end).since(now()).max(Duration::from_millis(1));
            let gap = match &mut hints {
                Some(hints) => {
                    let hint = tokio::time::timeout(wait, hints.next()).await;
                    matches!(hint, Ok(None | Some(Err(_))))
                }
                None => {
                    tokio::time::sleep(wait).await;
                    false
                }
            };
            if gap || now() >= end {
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(tries)
}

/// `None` where the harness cannot count.
async fn objects(stage: &Stage) -> Outcome<Option<u64>> {
    match stage.harness.objects() {
        Ok(count) => Ok(Some(count.await?)),
        Err(_) => Ok(None),
    }
}

async fn requests(stage: &Stage) -> Outcome<Option<u64>> {
    match stage.harness.requests() {
        Ok(count) => Ok(Some(count.await?)),
        Err(_) => Ok(None),
    }
}

/// Leases and sessions that nobody uses any more may live for a while.
async fn settles(stage: &Stage, allowed: u64) -> Outcome {
    let end = now() + stage.takeover() + stage.ttl() * 2;
    loop {
        let there = objects(stage).await?.unwrap_or_default();
        if there <= allowed {
            return Ok(());
        }
        ensure!(now() < end, "{there} objects are left in the store, {allowed} are allowed");
        tokio::time::sleep(stage.ttl() / 5).await;
    }
}

/// The resident memory of this process in bytes, where the system shows it.
fn resident() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

fn entries(directory: &str) -> Option<usize> {
    Some(std::fs::read_dir(directory).ok()?.count())
}
