//! Notes (checkpoint, hand-over request): compare-and-swap on the exact version, with a token beside the content.

use std::collections::BTreeSet;

use futures_util::future::try_join_all;
use incumbent_core::{FencingToken, Note, Stored, Swapped};

use super::{Rule, case};
use crate::stage::{Handle, Outcome, Stage, Stop, ensure};

pub(super) const RULE: Rule = Rule {
    id: "Notes",
    cases: &[
        case!(notes_a_stale_writer_changes_nothing),
        case!(notes_keep_every_byte_and_the_token),
        case!(notes_no_increment_is_lost),
        case!(notes_do_not_disturb_the_leader),
        case!(notes_outlive_a_restart_of_the_store, alone),
    ],
};

async fn read(handle: &Handle, election: &incumbent_core::ElectionName) -> Outcome<Option<Stored>> {
    Ok(handle.read_note(election, Note::Checkpoint).await?)
}

/// One that expects nothing to be there, an older version, another token, and one that was written already.
async fn notes_a_stale_writer_changes_nothing(stage: &Stage) -> Outcome {
    let (handle, other, election) = (stage.open().await?, stage.open().await?, stage.election());
    ensure!(read(&handle, &election).await?.is_none(), "an election that nobody has used has a note");
    let token = FencingToken(7);
    let swap = async |handle: &Handle, expected: Option<&Stored>, body: &str| {
        let body = body.as_bytes().to_vec();
        Outcome::Ok(handle.swap_note(&election, Note::Checkpoint, expected, token, body).await?)
    };
    let mut versions = BTreeSet::new();
    let Swapped::Done { version, .. } = swap(&handle, None, "one").await? else {
        return Err(Stop::Failed("a note cannot be created".to_owned()));
    };
    versions.insert(version);
    let one = read(&other, &election).await?;
    ensure!(
        one.as_ref().is_some_and(|one| one.version == version && one.body == b"one"),
        "written was one: {one:?}"
    );
    ensure!(swap(&other, None, "none").await? == Swapped::Conflict, "a note was created over another");
    let Swapped::Done { version, .. } = swap(&other, one.as_ref(), "two").await? else {
        return Err(Stop::Failed("a note that was just read cannot be swapped".to_owned()));
    };
    ensure!(versions.insert(version), "version {version} was used twice");
    // The same request again, as after a lost answer.
    ensure!(swap(&other, one.as_ref(), "two").await? == Swapped::Conflict, "a swap was done twice");
    ensure!(swap(&handle, one.as_ref(), "late").await? == Swapped::Conflict, "a stale writer has written");
    let two = read(&handle, &election).await?;
    ensure!(two.as_ref().is_some_and(|two| two.body == b"two"), "written last was two: {two:?}");
    // Back to the old content is a new version.
    let Swapped::Done { version, .. } = swap(&handle, two.as_ref(), "one").await? else {
        return Err(Stop::Failed("a note that was just read cannot be swapped".to_owned()));
    };
    ensure!(versions.insert(version), "version {version} was used twice");
    Ok(())
}

/// Nothing, every byte, and as much as a checkpoint may have.
async fn notes_keep_every_byte_and_the_token(stage: &Stage) -> Outcome {
    let (handle, other) = (stage.open().await?, stage.open().await?);
    let every: Vec<u8> = (0..=255).collect();
    let longest: Vec<u8> = every.iter().copied().cycle().take(2 * 64 * 1024 + 200).collect();
    for body in [Vec::new(), every, longest] {
        for note in [Note::Checkpoint, Note::Handover] {
            let election = stage.election();
            let token = FencingToken(u64::from(u32::MAX) * 1_000_000);
            let swapped = handle.swap_note(&election, note, None, token, body.clone()).await?;
            let Swapped::Done { version, token: there, .. } = swapped else {
                return Err(Stop::Failed("a note cannot be created".to_owned()));
            };
            ensure!(there == token.0, "token {token} was stored as {there}");
            let stored = other.read_note(&election, note).await?;
            let expected = Stored { version, token: token.0, body: body.clone() };
            ensure!(stored == Some(expected), "{} bytes were not kept as they were: {stored:?}", body.len());
            let beside = if note == Note::Checkpoint { Note::Handover } else { Note::Checkpoint };
            ensure!(other.read_note(&election, beside).await?.is_none(), "both notes are one");
        }
    }
    Ok(())
}

/// Several count in one note at the same time.
async fn notes_no_increment_is_lost(stage: &Stage) -> Outcome {
    const EACH: u64 = 10;
    let election = stage.election();
    let handles = stage.open_many(5).await?;
    try_join_all(handles.iter().map(async |handle| {
        let mut done = 0;
        let mut tries = 0;
        while done < EACH {
            let stored = read(handle, &election).await?;
            let count = stored.as_ref().map_or(Ok(0), |stored| number(&stored.body))?;
            let body = (count + 1).to_string().into_bytes();
            let swap = handle.swap_note(&election, Note::Checkpoint, stored.as_ref(), FencingToken(1), body);
            if let Swapped::Done { .. } = swap.await? {
                done += 1;
            }
            tries += 1;
            ensure!(tries < 10_000, "{done} of {EACH} increments after {tries} tries");
            tokio::task::yield_now().await;
        }
        Ok(())
    }))
    .await?;
    let stored = read(&handles[0], &election).await?;
    let count = stored.as_ref().map_or(Ok(0), |stored| number(&stored.body))?;
    ensure!(count == EACH * 5, "of {} increments {count} are there", EACH * 5);
    Ok(())
}

fn number(body: &[u8]) -> Outcome<u64> {
    let text = String::from_utf8_lossy(body);
    text.parse().map_err(|_| Stop::Failed(format!("a number was written, {text:?} is read")))
}

/// It renews before and after, and challengers see no more than before.
async fn notes_do_not_disturb_the_leader(stage: &Stage) -> Outcome {
    let (handle, other, election) = (stage.open().await?, stage.open().await?, stage.election());
    let claim = stage.claim(&election, "a");
    let grant = stage.win(&handle, &claim).await?;
    let token = grant.token.unwrap_or(FencingToken(1));
    for note in [Note::Checkpoint, Note::Handover] {
        other.swap_note(&election, note, None, token, b"something".to_vec()).await?;
        stage.must_extend(&handle, &claim, &grant).await?;
    }
    stage.must_not_win(&other, &stage.claim(&election, "b")).await?;
    let shown = stage.observe(&other, &election).await?.leader.and_then(|leader| leader.token);
    ensure!(shown == grant.token, "granted was {:?}, shown is {shown:?}", grant.token);
    Ok(())
}

/// Where the backend declares that what it stores outlives a crash.
async fn notes_outlive_a_restart_of_the_store(stage: &Stage) -> Outcome {
    if !stage.guarantees.survives.crash {
        return Err(Stop::NotApplicable(
            "the backend declares that nothing survives a crash of the store".to_owned(),
        ));
    }
    let (handle, election) = (stage.open().await?, stage.election());
    handle.swap_note(&election, Note::Checkpoint, None, FencingToken(3), b"kept".to_vec()).await?;
    stage.hook(stage.harness.restart()).await?;
    let end = crate::clock::now() + stage.takeover();
    loop {
        match handle.read_note(&election, Note::Checkpoint).await {
            Ok(stored) => {
                ensure!(
                    stored.as_ref().is_some_and(|stored| stored.body == b"kept"),
                    "the note is lost: {stored:?}"
                );
                return Ok(());
            }
            Err(error) => ensure!(crate::clock::now() < end, "the store does not come back: {error:?}"),
        }
        tokio::time::sleep(stage.ttl() / 20).await;
    }
}
