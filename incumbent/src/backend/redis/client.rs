//! The way to the primary: which server, when to give it up for another, what goes to it together, and who hears what it tells.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use incumbent_core::{BootInstant, Error, ErrorKind, Result};
use redis::{PushInfo, PushKind, Value};
use tokio::sync::{Notify, mpsc, watch};

use super::batch::{self, Job};
use super::dial::{self, Config, Link};
use super::failure::{self, Effect};
use crate::backend::hosts::{Hosts, SEARCH};
use crate::backend::signals::Signals;
use crate::clock;

/// The shortest and the longest pause between two searches that nobody waits for.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// One connection to the primary at a time, shared by all elections.
pub(super) struct Client {
    config: Config,
    hosts: Hosts,
    state: Mutex<State>,
    /// Who waits for news, by channel.
    signals: Signals,
    /// The channels that somebody wants to hear of.
    wanted: Mutex<BTreeMap<String, Wanted>>,
    wanted_changed: Notify,
    /// How often to look where the server tells nothing: ttl/3.
    poll: Duration,
    /// Marks what this client published.
    pub(super) own_mark: String,
}

/// A channel that is listened to.
struct Wanted {
    /// By how many.
    by: usize,
    /// When something was heard there last, or they were told to look.
    heard_at: BootInstant,
}

#[derive(Default)]
struct State {
    link: Option<Link>,
    /// The search for a link that is under way.
    search: Option<watch::Receiver<Option<Result<Link>>>>,
    lineage: Option<String>,
    authority: Option<String>,
    /// What an operator has been told.
    advice: Vec<String>,
}

impl Client {
    /// Nothing is connected yet.
    pub(super) fn new(config: Config, poll: Duration, own_mark: String) -> Client {
        Client {
            hosts: Hosts::new(config.hosts.len(), config.patience),
            config,
            state: Mutex::default(),
            signals: Signals::default(),
            wanted: Mutex::default(),
            wanted_changed: Notify::new(),
            poll,
            own_mark,
        }
    }

    /// The history that the latest answer belongs to; `None` before the first.
    pub(super) fn lineage(&self) -> Option<String> {
        self.lock().lineage.clone()
    }

    /// What the store calls itself; `None` before the first write.
    pub(super) fn authority(&self) -> Option<String> {
        self.lock().authority.clone()
    }

    /// What weakens the promises of the server in use, each as one line.
    pub(super) async fn advice(self: &Arc<Self>) -> Result<Vec<String>> {
        Ok(self.link().await?.facts.advice())
    }

    /// Takes calls and makes them, those that wait at one moment together, until the last caller is gone.
    pub(super) async fn serve(self: Arc<Self>, mut jobs: mpsc::UnboundedReceiver<Job>) {
        while let Some(first) = jobs.recv().await {
            // Whoever is ready at this moment comes along.
            tokio::task::yield_now().await;
            let mut together = vec![first];
            while together.len() < batch::MAX
                && let Ok(job) = jobs.try_recv()
            {
                together.push(job);
            }
            self.attempt(together).await;
        }
    }

    /// Sends what is still waited for, once.
    async fn attempt(self: &Arc<Self>, mut jobs: Vec<Job>) {
        // Before connecting: what is trusted counts from here.
        let sent_at = clock::now();
        let link = tokio::select! {
            biased;
            link = self.link() => link,
            () = batch::all_gone(&mut jobs) => return,
        };
        jobs.retain(Job::is_waited_for);
        let link = match link {
            Ok(_) if jobs.is_empty() => return,
            Ok(link) => link,
            Err(failure) => return batch::fail(jobs, &failure),
        };
        let authority = self.authority();
        let request =
            batch::Request::new(&jobs, authority.as_deref().unwrap_or(&self.own_mark), &self.own_mark);
        let outcome = tokio::select! {
            biased;
            outcome = request.send(&link) => Some(outcome),
            () = batch::one_gone(&mut jobs, self.config.patience) => None,
            () = tokio::time::sleep(self.config.limit) => None,
        };
        match outcome {
            None => {
                self.give_up(&link);
                batch::refuse(jobs, |effect| failure::unanswered(&link.host, effect));
            }
            Some(Ok(answers)) => {
                self.note(&link, &answers);
                batch::answer(jobs, answers, sent_at);
            }
            Some(Err(cause)) => {
                if failure::is_final(&cause) {
                    self.give_up(&link);
                }
                batch::refuse(jobs, |effect| failure::explain(cause.clone(), &link.host, effect));
            }
        }
    }

    /// Remembers what an answer said about the store.
    fn note(&self, link: &Link, answers: &batch::Answers) {
        let mut state = self.lock();
        let old = state.lineage.replace(answers.lineage.clone());
        if old.is_some_and(|old| old != answers.lineage) {
            tracing::warn!(
                host = &*link.host,
                lineage = answers.lineage,
                "redis was restarted or has failed over; it may have forgotten writes, so terms end"
            );
        }
        if let Some(authority) = &answers.authority {
            state.authority = Some(authority.clone());
        }
    }

    /// The link in use, or a new one to the first primary that is found.
    ///
    /// # Errors
    /// None of them is ambiguous: nothing was asked that could have an effect. Not [retryable](Error::is_retryable) only if no
    /// server is merely unreachable.
    async fn link(self: &Arc<Self>) -> Result<Link> {
        let mut search = {
            let mut state = self.lock();
            if let Some(link) = state.link.clone().filter(|link| !link.is_closed()) {
                return Ok(link);
            }
            state.link = None;
            state.search.get_or_insert_with(|| self.start_search()).clone()
        };
        let lost = || Error::new(ErrorKind::Internal, "the search for a redis server ended without a result");
        let found = search.wait_for(Option::is_some).await.map_err(|_| lost())?;
        found.clone().unwrap_or_else(|| Err(lost()))
    }

    /// It goes on when nobody waits for it any more, so that the next one need not begin anew.
    fn start_search(self: &Arc<Self>) -> watch::Receiver<Option<Result<Link>>> {
        let (found, search) = watch::channel(None);
        let client = Arc::clone(self);
        tokio::spawn(async move {
            let outcome = client.search().await;
            let mut state = client.lock();
            state.search = None;
            if let Ok(link) = &outcome {
                state.link = Some(link.clone());
                let advice = link.facts.advice();
                if state.advice != advice {
                    advice.iter().for_each(|line| tracing::warn!(host = &*link.host, "{line}"));
                    state.advice = advice;
                }
            }
            drop(state);
            found.send_replace(Some(outcome));
        });
        search
    }

    /// The first primary that is found.
    async fn search(self: &Arc<Self>) -> Result<Link> {
        let silent = |index: usize| {
            let text = format_args!("no answer within {SEARCH:?}");
            failure::error(ErrorKind::Unavailable, &self.config.name(index), text)
        };
        self.hosts.search(|index| self.connect(index), silent).await
    }

    async fn connect(self: &Arc<Self>, index: usize) -> Result<Link> {
        let client = Arc::downgrade(self);
        let push = move |told: PushInfo| {
            if let Some(client) = client.upgrade() {
                client.told(told);
            }
        };
        dial::connect(&self.config, index, push).await
    }

    /// Stops using `link`, which failed; the next call goes to another server if there is one.
    fn give_up(&self, link: &Link) {
        link.close();
        let mut state = self.lock();
        if state.link.as_ref().is_some_and(|current| current.is(link)) {
            self.hosts.give_up(link.index);
            state.link = None;
            tracing::debug!(host = &*link.host, "server given up");
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- what the server tells ----

    /// What the server tells without being asked: somebody wrote.
    fn told(&self, told: PushInfo) {
        if told.kind != PushKind::Message {
            return;
        }
        if let [Value::BulkString(channel), Value::BulkString(mark)] = &told.data[..]
            && let Ok(channel) = std::str::from_utf8(channel)
        {
            if let Some(wanted) = self.wanted().get_mut(channel) {
                wanted.heard_at = clock::now();
            }
            // A renewal of one's own is news only to another candidate of this process.
            match mark == self.own_mark.as_bytes() {
                true => self.signals.send_if_shared(channel),
                false => self.signals.send(channel),
            }
        }
    }

    /// The signals of one channel from now on.
    pub(super) fn follow(self: &Arc<Self>, channel: &str) -> incumbent_core::BoxStream<'static, Result<()>> {
        let signals = self.signals.subscribe(channel);
        let new = || Wanted { by: 0, heard_at: clock::now() };
        self.wanted().entry(channel.to_owned()).or_insert_with(new).by += 1;
        self.wanted_changed.notify_one();
        let listener = Listener { client: Arc::clone(self), channel: channel.to_owned() };
        Box::pin(signals.inspect(move |_| {
            let _ = &listener;
        }))
    }

    fn wanted(&self) -> MutexGuard<'_, BTreeMap<String, Wanted>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the subscriptions as they are wanted, over all connections.
    pub(super) async fn listen(self: Arc<Self>) {
        let mut pause = PAUSE.0;
        loop {
            while self.wanted().is_empty() {
                self.wanted_changed.notified().await;
            }
            match self.link().await {
                Ok(link) => {
                    pause = PAUSE.0;
                    self.listen_on(&link).await;
                }
                Err(_) => pause = (pause * 2).min(PAUSE.1),
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Returns when the link is closed.
    async fn listen_on(&self, link: &Link) {
        let mut connection = link.connection.clone();
        let mut heard = BTreeSet::new();
        loop {
            let wanted: BTreeSet<String> = self.wanted().keys().cloned().collect();
            let (more, less): (Vec<&String>, Vec<&String>) =
                (wanted.difference(&heard).collect(), heard.difference(&wanted).collect());
            let mut outcome = Ok(());
            if !less.is_empty() {
                outcome = connection.unsubscribe(less).await;
            }
            if outcome.is_ok() && !more.is_empty() {
                outcome = connection.subscribe(&more).await;
                // What happened before is seen by a look.
                more.iter().for_each(|channel| self.signals.send(channel));
            }
            if let Err(cause) = outcome {
                if failure::is_final(&cause) {
                    return self.give_up(link);
                }
                let failure = failure::explain(cause, &link.host, Effect::None);
                tracing::warn!(%failure, "redis tells nothing of changes, so they are looked for");
                return self.poll(link).await;
            }
            heard = wanted;
            tokio::select! {
                () = link.closed() => return,
                () = self.wanted_changed.notified() => {}
                () = tokio::time::sleep(self.poll) => self.look_where_it_is_silent(),
            }
        }
    }

    /// A leader is heard of every ttl/3. Where nobody was for a whole ttl, somebody may have taken the record away, which Redis
    /// tells nobody.
    fn look_where_it_is_silent(&self) {
        let now = clock::now();
        for (channel, wanted) in self.wanted().iter_mut() {
            if now.since(wanted.heard_at) >= self.poll * 3 {
                wanted.heard_at = now;
                self.signals.send(channel);
            }
        }
    }

    /// In place of subscriptions: everybody looks from time to time.
    async fn poll(&self, link: &Link) {
        loop {
            tokio::select! {
                () = link.closed() => return,
                () = tokio::time::sleep(self.poll) => self.signals.send_all(),
            }
        }
    }
}

/// One who wants to hear of a channel.
struct Listener {
    client: Arc<Client>,
    channel: String,
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut wanted = self.client.wanted();
        if let Some(of_channel) = wanted.get_mut(&self.channel) {
            of_channel.by -= 1;
            if of_channel.by == 0 {
                wanted.remove(&self.channel);
                drop(wanted);
                self.client.wanted_changed.notify_one();
            }
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = (0..self.config.hosts.len()).map(|index| self.config.name(index)).collect();
        f.debug_struct("Client").field("hosts", &hosts).finish_non_exhaustive()
    }
}
