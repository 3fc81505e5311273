//! What someone who wants his backend proved has to write: how to connect, and which faults he can make.

use std::sync::Arc;
use std::time::Duration;

use incumbent_core::{Backend, BoxFuture, Claim, ElectionName, Result};

/// Something that a harness does to its store, or the reason why it cannot. A case that needs what cannot be done
/// prints `n/a:` and that reason.
pub type Hook<'a, T = ()> = Result<BoxFuture<'a, Result<T>>, &'static str>;

/// A store under test. Only [`connect`](Harness::connect) must be written; each hook that is added makes cases run that
/// are reported as `n/a` without it.
///
/// Every method is called on a thread that runs a tokio current-thread runtime with time and I/O. A hook that blocks its
/// thread also stops the backends that live there: use `tokio::task::spawn_blocking` for what takes long.
pub trait Harness: Send + Sync + 'static {
    /// A connection of its own to the one store, as a process of its own would have it: its own session, if the store
    /// has sessions. What the backend starts belongs to the runtime it is called on and ends when the backend is dropped.
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>>;

    /// The lease duration of those connections. The suite waits it out many times: choose the shortest that the
    /// backend can keep, but not below a second, or a busy machine makes the cases fail.
    fn ttl(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// Deletes by hand the record (key, row, file) that shows the leader of `election`.
    fn delete<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let _ = election;
        Err("the harness cannot delete a record by hand")
    }

    /// Overwrites that record by hand with one of somebody else.
    fn replace<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let _ = election;
        Err("the harness cannot overwrite a record by hand")
    }

    /// Deletes by hand what shows that the campaign `claim`, which does not lead, waits in the queue.
    fn delete_place<'a>(&'a self, claim: &'a Claim) -> Hook<'a> {
        let _ = claim;
        Err("the harness cannot delete a waiting candidate's place by hand")
    }

    /// Ends by hand the session that keeps the grant of `election` alive.
    fn end_session<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        let _ = election;
        Err("the harness cannot end a session by hand")
    }

    /// Kills the whole store and starts it again on its data; ready when it serves.
    fn restart(&self) -> Hook<'_> {
        Err("the harness cannot restart the store")
    }

    /// Makes another node of the store its leader; ready when the store serves.
    fn fail_over(&self) -> Hook<'_> {
        Err("the harness cannot make the store fail over")
    }

    /// Cuts a replica off, which lacks what the store acknowledges from then on; or makes that replica the leader, so that all of it is
    /// lost.
    fn lose_writes(&self, promote: bool) -> Hook<'_> {
        let _ = promote;
        Err("the harness cannot promote a replica that lacks writes")
    }

    /// Keeps a copy of all of the store's data, or puts the copy back as a careless operator would.
    fn back_up(&self, put_back: bool) -> Hook<'_> {
        let _ = put_back;
        Err("the harness cannot put an old copy of the store's data back")
    }

    /// Keeps the store from committing anything (its disk hangs), while it goes on answering what it can answer without; or
    /// ends that.
    fn stall(&self, on: bool) -> Hook<'_> {
        let _ = on;
        Err("the harness cannot stall the store's disk")
    }

    /// Holds back everything that the store sends to the connections that are open and to later ones, while their requests go
    /// through; or lets it all pass, in order.
    fn hold_answers(&self, on: bool) -> Hook<'_> {
        let _ = on;
        Err("the harness cannot hold back the store's answers")
    }

    /// Steps the wall clock of this process, of the store, or of both by `seconds`.
    fn step_wall_clock(&self, seconds: i64) -> Hook<'_> {
        let _ = seconds;
        Err("the harness cannot step a wall clock")
    }

    /// How many objects (records, keys, sessions, leases, locks, connections) the store holds.
    fn objects(&self) -> Hook<'_, u64> {
        Err("the harness cannot count the store's objects")
    }

    /// How many of these objects an election keeps for good when its last candidate has gone: by default its record, from which
    /// its tokens go on to rise. 0 where tokens come from the whole store.
    fn kept(&self) -> u64 {
        1
    }

    /// Whether the store may answer a read before a write that the same connection sent earlier and no longer waits for.
    fn reads_out_of_turn(&self) -> bool {
        false
    }

    /// How many requests the store has got since it was started.
    fn requests(&self) -> Hook<'_, u64> {
        Err("the harness cannot count the store's requests")
    }
}
