//! Hints for the electors: what happened to a candidate's own node, to the one before it, to the first one, and to the
//! hand-over note.

use std::sync::Arc;

use futures_core::Stream;
use futures_util::stream;
use incumbent_core::{ElectionName, Note, Result};
use tokio::sync::oneshot::Receiver as Fired;
use tokio::sync::watch::Receiver;

use super::campaign::{Name, Targets};
use super::session::Shared;

/// The hints of one campaign. It watches nodes, not the election, so that one who waits and leaves wakes one.
struct Hints {
    shared: Arc<Shared>,
    name: Name,
    targets: Receiver<Targets>,
    aimed: Targets,
    own: Option<Fired<()>>,
    ahead: Option<Fired<()>>,
    first: Option<Fired<()>>,
    note: Option<Fired<()>>,
    /// The transaction that wrote the note when it was looked at last, 0 without a note.
    note_seen: Option<i64>,
}

/// Hints for the campaign `name`.
pub(super) fn of_campaign(shared: Arc<Shared>, name: Name) -> impl Stream<Item = Result<()>> + Send {
    let mut targets = shared.targets(&name);
    targets.mark_changed();
    let aimed = Targets::default();
    let hints = Hints {
        shared,
        name,
        targets,
        aimed,
        own: None,
        ahead: None,
        first: None,
        note: None,
        note_seen: None,
    };
    stream::unfold(hints, |mut hints| async move { Some((hints.next().await?, hints)) })
}

/// Hints for an observer: any change of the queue or the note. The first comes when it is watched: whatever was looked at
/// before may have changed since.
pub(super) fn of_election(
    shared: Arc<Shared>,
    election: ElectionName,
) -> impl Stream<Item = Result<()>> + Send {
    let watching = (shared, election, None, None);
    stream::unfold(watching, |(shared, election, mut queue, mut note)| async move {
        let next = async {
            if queue.is_some() && note.is_some() {
                tokio::select! {
                    () = fired(&mut queue) => queue = None,
                    () = fired(&mut note) => note = None,
                }
            }
            let dir = shared.nodes.election(&election)?;
            while queue.is_none() {
                queue = match shared.client.watch_children(&dir).await? {
                    Some(fired) => Some(fired),
                    // Unless it was made in between.
                    None => match shared.client.watch_node(&dir).await? {
                        (None, fired) => Some(fired),
                        (Some(_), _) => None,
                    },
                };
            }
            if note.is_none() {
                let path = shared.nodes.note(&election, Note::Handover);
                note = Some(shared.client.watch_node(&path).await?.1);
            }
            Ok(())
        };
        let hint = next.await;
        Some((hint, (shared, election, queue, note)))
    })
}

impl Hints {
    async fn next(&mut self) -> Option<Result<()>> {
        loop {
            match self.step().await {
                Ok(Some(true)) => return Some(Ok(())),
                Ok(Some(false)) => {}
                Ok(None) => return None,
                Err(failure) => return Some(Err(failure)),
            }
        }
    }

    /// True if there is something to look at; `None` once the campaign is over.
    async fn step(&mut self) -> Result<Option<bool>> {
        if self.targets.has_changed().unwrap_or(true) {
            if self.targets.has_changed().is_err() {
                return Ok(None);
            }
            let targets = self.targets.borrow_and_update().clone();
            if targets.own != self.aimed.own {
                self.own = None;
            }
            if targets.ahead != self.aimed.ahead {
                self.ahead = None;
            }
            if targets.first != self.aimed.first {
                self.first = None;
            }
            self.aimed = targets;
        }
        let client = &self.shared.client;
        for (fired, aimed) in
            [(&mut self.ahead, &mut self.aimed.ahead), (&mut self.first, &mut self.aimed.first)]
        {
            if fired.is_none()
                && let Some(path) = aimed
            {
                *fired = client.watch_children(path).await?;
                if fired.is_none() {
                    *aimed = None;
                    return Ok(Some(true));
                }
            }
        }
        if self.own.is_none()
            && let Some(path) = &self.aimed.own
        {
            let (stat, fired) = client.watch_node(path).await?;
            self.own = Some(fired);
            let mut state = self.shared.state();
            let Some(campaign) = state.campaigns.get_mut(&self.name) else { return Ok(None) };
            // Where another node has taken its place meanwhile, the targets have changed too.
            let node = campaign.node.as_ref().filter(|node| node.path == *path);
            let as_known = node.is_none_or(|node| {
                stat.is_some_and(|stat| stat.created == node.created && stat.version <= node.version)
            });
            if !as_known {
                campaign.stale = true;
                return Ok(Some(true));
            }
        }
        if self.note.is_none() && self.aimed.own.is_some() {
            let path = self.shared.nodes.note(&self.name.0, Note::Handover);
            let (stat, fired) = client.watch_node(&path).await?;
            self.note = Some(fired);
            let version = stat.map_or(0, |stat| stat.modified);
            // It may have been written before it was watched.
            if self.note_seen.replace(version).unwrap_or(0) != version {
                return Ok(Some(true));
            }
        }
        tokio::select! {
            biased;
            changed = self.targets.changed() => {
                if changed.is_err() {
                    return Ok(None);
                }
                // Seen again at the next step.
                self.targets.mark_changed();
                Ok(Some(false))
            }
            // What has happened to these is judged when they are watched again.
            () = fired(&mut self.own) => {
                self.own = None;
                Ok(Some(false))
            }
            () = fired(&mut self.note) => {
                self.note = None;
                Ok(Some(false))
            }
            () = fired(&mut self.ahead) => {
                self.ahead = None;
                self.aimed.ahead = None;
                Ok(Some(true))
            }
            () = fired(&mut self.first) => {
                self.first = None;
                self.aimed.first = None;
                Ok(Some(true))
            }
        }
    }
}

/// Waits until a watch fires; for ever without one.
async fn fired(watch: &mut Option<Fired<()>>) {
    match watch {
        // Its sender is only ever dropped with the client.
        Some(fired) => {
            let _ = fired.await;
        }
        None => std::future::pending().await,
    }
}
