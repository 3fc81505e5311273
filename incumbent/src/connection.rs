//! From a URL to an election.

use std::sync::Arc;
use std::time::Duration;

use incumbent_core::{
    Backend, CandidateId, ElectionName, FencingToken, Guarantees, Observation, Result, Settings,
};

use crate::backend;
use crate::candidate::Candidate;
use crate::checkpoint::Checkpoint;
use crate::handover;
use crate::observer::Observer;
use crate::thread::Handle;

/// A way to one authority. All elections reached through it share one thread, one session and one ttl. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Connection {
    handle: Handle,
    settings: Arc<Settings>,
}

/// Opens a connection to the backend that `url` names, as in `etcd://127.0.0.1:2379` or `file:`.
///
/// Checks everything that can be checked without the server and does not wait for it.
///
/// # Errors
/// [`UnknownScheme`](incumbent_core::ErrorKind::UnknownScheme), [`InvalidConfig`](incumbent_core::ErrorKind::InvalidConfig), or what the
/// backend finds wrong on this machine.
pub async fn connect(url: &str) -> Result<Connection> {
    connect_with(url, Settings::default()).await
}

/// As [`connect`], with other settings than the defaults. A `ttl` in the URL wins.
///
/// # Errors
/// As [`connect`].
pub async fn connect_with(url: &str, settings: Settings) -> Result<Connection> {
    let opened = backend::open(url, settings)?;
    let settings = opened.settings;
    Connection::start(opened.scheme, opened.factory, settings).await
}

impl Connection {
    /// A connection to a backend of your own. `factory` runs on the elector's thread, inside its runtime; connections that
    /// the backend makes belong there.
    ///
    /// # Errors
    /// What `factory` returns.
    pub async fn open<F>(factory: F, settings: Settings) -> Result<Connection>
    where
        F: FnOnce() -> Result<Arc<dyn Backend>> + Send + 'static,
    {
        Connection::start("custom", Box::new(factory), settings).await
    }

    async fn start(scheme: &str, factory: crate::thread::Factory, settings: Settings) -> Result<Connection> {
        let handle = Handle::start(scheme, factory).await?;
        Ok(Connection { handle, settings: Arc::new(settings) })
    }

    /// The election of this name. Nothing is checked or asked yet.
    pub fn election(&self, name: impl Into<String>) -> Election {
        Election { connection: self.clone(), name: name.into() }
    }

    /// What the backend promises.
    pub fn guarantees(&self) -> &Guarantees {
        self.handle.guarantees()
    }

    /// What in the store's present state weakens what it promises, for its operator: one line each, with what to change.
    ///
    /// # Errors
    /// Those of the store; none of them is waited out.
    pub async fn advice(&self) -> Result<Vec<String>> {
        self.handle.call(|backend| async move { backend.advice().await }).await
    }

    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// One election at one authority. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Election {
    connection: Connection,
    name: String,
}

impl Election {
    /// The election's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The connection it is reached through.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// A candidate with the name `id`, for people: a Pod's name, or host and process id. Two processes with one id exclude each other.
    pub fn candidate(&self, id: impl Into<String>) -> Candidate {
        Candidate::new(self.clone(), id.into())
    }

    /// What the store shows now. A report, never a proof.
    ///
    /// # Errors
    /// Those of the store; none of them is waited out.
    pub async fn observe(&self) -> Result<Observation> {
        let name = ElectionName::new(self.name.clone())?;
        let call = move |backend: Arc<dyn Backend>| async move { backend.observe(&name).await };
        self.connection.handle.call(call).await
    }

    /// Follows who leads.
    ///
    /// # Errors
    /// [`InvalidName`](incumbent_core::ErrorKind::InvalidName).
    pub fn observer(&self) -> Result<Observer> {
        Observer::start(ElectionName::new(self.name.clone())?, &self.connection)
    }

    /// The checkpoint as anyone may read it. To write it takes the token of a term.
    ///
    /// # Errors
    /// [`InvalidName`](incumbent_core::ErrorKind::InvalidName).
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        Ok(Checkpoint::of_election(ElectionName::new(self.name.clone())?, self.connection.handle.clone()))
    }

    /// Asks the present leader to hand over, to the candidate `to` or to whoever is next, and waits until it has gone.
    /// Returns the token of the term that ended.
    ///
    /// The request names that term; it is withdrawn if it has had no effect within `patience`.
    ///
    /// # Errors
    /// [`NotFound`](incumbent_core::ErrorKind::NotFound): nobody leads, or no candidate has that id (the text lists those that do).
    /// [`Unsupported`](incumbent_core::ErrorKind::Unsupported): the leader, or a candidate that stands before the target, is foreign and
    /// cannot be asked. [`TimedOut`](incumbent_core::ErrorKind::TimedOut): the leader has not gone.
    pub async fn request_handover(
        &self,
        to: Option<CandidateId>,
        patience: Duration,
    ) -> Result<FencingToken> {
        let name = ElectionName::new(self.name.clone())?;
        let call = move |backend: Arc<dyn Backend>| handover::request(backend, name, to, patience);
        self.connection.handle.call(call).await
    }
}
