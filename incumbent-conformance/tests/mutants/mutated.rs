//! A backend with one bug, over a backend that is right.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::stream;
use incumbent::clock;
use incumbent_core::{
    Acquired, Backend, BootInstant, BoxFuture, BoxStream, CandidateId, Claim, ElectionName, FencingToken,
    Grant, Guarantees, Note, Observation, Renewed, Result, Stored, Swapped,
};
use tokio::sync::oneshot;

/// What is wrong with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// client-go: the deadline from the answer, not from the send; the network is slow.
    DeadlineFromAnswer,
    /// etcd #20418: what a read shows is taken for a proof.
    RenewedByRead,
    /// etcd #15247: so is a keep-alive that the store answers whatever has happened.
    RenewedByKeepAlive,
    /// A read that shows oneself as the leader is taken for a grant.
    AdoptedByRead,
    /// CURATOR-696, client-go's `IsLeader`: identity without a nonce.
    AdoptedById,
    /// A lost answer is a lost grant.
    NeverAdopts,
    /// Consul #6793: the store ends leases early.
    LeaseTooShort,
    /// The classic mistake on Redis: the release deletes whatever there is.
    ReleasesAnyone,
    NeverReleases,
    ReleasesOnlyWhatItKnows,
    /// etcd #20418 once more.
    ObservesTheOld,
    /// Kubernetes' `leaseTransitions` and the like: a counter that begins anew.
    TokensOfTheConnection,
    /// CURATOR-498, -620: a create that nobody waits for any more.
    ContendsInTheBackground,
    /// One session keeps alive what it ever got.
    RenewsWhatNobodyAsksFor,
    Deaf,
    NeverTriesAgain,
    TriesAgainAtOnce,
    HintsOfOneself,
    Leaks,
    /// A lock, a channel or a task of each election that is never cleared away.
    RemembersElections,
    ForgetsWhoIsNext,
    NotesCompareNothing,
    /// CURATOR-498 once more: a write goes on when nobody waits for it any more.
    WritesNotesInTheBackground,
}

#[derive(Debug)]
pub(crate) struct Mutated {
    inner: Arc<dyn Backend>,
    bug: Bug,
    tokens: AtomicU64,
    first_seen: Mutex<BTreeMap<ElectionName, Observation>>,
    kept: Mutex<Vec<Vec<u8>>>,
    elections: Mutex<BTreeMap<ElectionName, Vec<u8>>>,
}

impl Mutated {
    pub(crate) fn new(inner: Arc<dyn Backend>, bug: Bug) -> Mutated {
        Mutated {
            inner,
            bug,
            tokens: AtomicU64::new(1),
            first_seen: Mutex::default(),
            kept: Mutex::default(),
            elections: Mutex::default(),
        }
    }

    fn is(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    /// The campaign that leads, if the bug takes it for one of `claim`'s.
    async fn taken_for_own(&self, claim: &Claim) -> Result<Option<(Claim, Grant)>> {
        let Some(leader) = self.inner.observe(&claim.election).await?.leader else { return Ok(None) };
        let Some(nonce) = leader.contender.nonce else { return Ok(None) };
        let own = match self.bug {
            Bug::AdoptedByRead => nonce == claim.nonce,
            Bug::AdoptedById => leader.contender.id == claim.id.as_str(),
            _ => false,
        };
        let grant = Grant {
            token: leader.token,
            authority: incumbent_core::Authority::new("mutant"),
            sent_at: clock::now(),
            ttl: claim.ttl,
        };
        Ok(own.then(|| (Claim { nonce, ..claim.clone() }, grant)))
    }

    async fn acquire(&self, claim: &Claim) -> Result<Acquired> {
        if let Some((_, grant)) = self.taken_for_own(claim).await? {
            return Ok(Acquired::Granted(grant));
        }
        if self.is(Bug::NeverAdopts) {
            let observation = self.inner.observe(&claim.election).await?;
            if observation.leader.as_ref().is_some_and(|leader| leader.contender.nonce == Some(claim.nonce)) {
                return Ok(Acquired::Held { observation, try_again: clock::now() + claim.ttl });
            }
        }
        let asked = match self.bug {
            Bug::LeaseTooShort => Claim { ttl: claim.ttl / 2, ..claim.clone() },
            _ => claim.clone(),
        };
        if self.is(Bug::Leaks) {
            self.kept.lock().expect("an unbroken lock").push(vec![1; 65536]);
        }
        if self.is(Bug::RemembersElections) {
            let mut elections = self.elections.lock().expect("an unbroken lock");
            elections.entry(claim.election.clone()).or_insert_with(|| vec![1; 16_384]);
        }
        let acquired = match self.bug {
            Bug::ContendsInTheBackground => self.acquire_detached(asked).await?,
            _ => self.inner.try_acquire(&asked).await?,
        };
        match acquired {
            Acquired::Granted(mut grant) => {
                grant.ttl = claim.ttl;
                match self.bug {
                    Bug::TokensOfTheConnection => {
                        grant.token = Some(FencingToken(self.tokens.fetch_add(1, Ordering::Relaxed)));
                    }
                    Bug::RenewsWhatNobodyAsksFor => self.renew_for_ever(claim.clone(), grant.clone()),
                    _ => {}
                }
                Ok(Acquired::Granted(grant))
            }
            Acquired::Held { observation, try_again } => {
                let try_again = match self.bug {
                    Bug::NeverTriesAgain => BootInstant::FAR_FUTURE,
                    Bug::TriesAgainAtOnce => clock::now(),
                    _ => try_again,
                };
                Ok(Acquired::Held { observation, try_again })
            }
        }
    }

    /// The call lives in a task of its own, which goes on when nobody waits for its answer any more.
    async fn acquire_detached(&self, claim: Claim) -> Result<Acquired> {
        let inner = self.inner.clone();
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move {
            if answer.send(inner.try_acquire(&claim).await).is_ok() {
                return;
            }
            loop {
                if let Ok(Acquired::Granted(grant)) = inner.try_acquire(&claim).await {
                    while let Ok(Renewed::Extended { .. }) = inner.renew(&claim, &grant).await {
                        tokio::time::sleep(claim.ttl / 4).await;
                    }
                }
                tokio::time::sleep(claim.ttl / 10).await;
            }
        });
        answered.await.expect("the task answers")
    }

    fn renew_for_ever(&self, claim: Claim, grant: Grant) {
        let inner = self.inner.clone();
        tokio::spawn(async move {
            while let Ok(Renewed::Extended { .. }) = inner.renew(&claim, &grant).await {
                tokio::time::sleep(claim.ttl / 4).await;
            }
        });
    }

    async fn extend(&self, claim: &Claim, grant: &Grant) -> Result<Renewed> {
        let extended = || Ok(Renewed::Extended { sent_at: clock::now(), ttl: claim.ttl });
        match self.bug {
            Bug::RenewedByKeepAlive => extended(),
            Bug::RenewedByRead => {
                let seen = self.inner.observe(&claim.election).await?;
                let own =
                    seen.leader.as_ref().is_some_and(|leader| leader.contender.nonce == Some(claim.nonce));
                if own { extended() } else { Ok(Renewed::Lost(seen)) }
            }
            Bug::AdoptedById => match self.taken_for_own(claim).await? {
                Some((twin, grant)) => self.inner.renew(&twin, &grant).await,
                None => self.inner.renew(claim, grant).await,
            },
            Bug::DeadlineFromAnswer => match self.inner.renew(claim, grant).await? {
                Renewed::Extended { ttl, .. } => {
                    tokio::time::sleep(claim.ttl / 4).await;
                    Ok(Renewed::Extended { sent_at: clock::now(), ttl })
                }
                lost => Ok(lost),
            },
            _ => self.inner.renew(claim, grant).await,
        }
    }

    async fn give_back(
        &self,
        claim: &Claim,
        grant: Option<&Grant>,
        next: Option<&CandidateId>,
    ) -> Result<()> {
        match (self.bug, grant) {
            (Bug::NeverReleases, _) | (Bug::ReleasesOnlyWhatItKnows, None) => Ok(()),
            (Bug::ReleasesAnyone, _) => {
                let leader = self.inner.observe(&claim.election).await?.leader;
                let whose = match leader {
                    Some(leader) => Claim {
                        id: CandidateId::new(leader.contender.id)?,
                        nonce: leader.contender.nonce.unwrap_or(claim.nonce),
                        ..claim.clone()
                    },
                    None => claim.clone(),
                };
                self.inner.release(&whose, grant, next).await
            }
            (Bug::ForgetsWhoIsNext, _) => self.inner.release(claim, grant, None).await,
            _ => self.inner.release(claim, grant, next).await,
        }
    }

    async fn look(&self, election: &ElectionName) -> Result<Observation> {
        let seen = self.inner.observe(election).await?;
        let mut first_seen = self.first_seen.lock().expect("an unbroken lock");
        if self.is(Bug::ObservesTheOld) && seen.leader.is_some() {
            let first = first_seen.entry(election.clone()).or_insert_with(|| seen.clone()).clone();
            // Every other look goes to a member that lags behind.
            if self.tokens.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
                return Ok(first);
            }
        }
        Ok(seen)
    }
}

impl Backend for Mutated {
    fn guarantees(&self) -> &Guarantees {
        self.inner.guarantees()
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Acquired>> {
        Box::pin(self.acquire(claim))
    }

    fn renew<'a>(&'a self, claim: &'a Claim, grant: &'a Grant) -> BoxFuture<'a, Result<Renewed>> {
        Box::pin(self.extend(claim, grant))
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        grant: Option<&'a Grant>,
        next: Option<&'a CandidateId>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.give_back(claim, grant, next))
    }

    fn observe<'a>(&'a self, election: &'a ElectionName) -> BoxFuture<'a, Result<Observation>> {
        Box::pin(self.look(election))
    }

    fn watch<'a>(
        &'a self,
        election: &'a ElectionName,
        campaign: Option<&'a Claim>,
    ) -> Option<BoxStream<'a, Result<()>>> {
        match self.bug {
            Bug::Deaf => Some(Box::pin(stream::pending())),
            Bug::HintsOfOneself => self.inner.watch(election, None),
            _ => self.inner.watch(election, campaign),
        }
    }

    fn read_note<'a>(
        &'a self,
        election: &'a ElectionName,
        note: Note,
    ) -> BoxFuture<'a, Result<Option<Stored>>> {
        Box::pin(async move {
            let stored = self.inner.read_note(election, note).await;
            if self.is(Bug::NotesCompareNothing) {
                // Another one reads at the same time.
                tokio::time::sleep(Duration::from_micros(100)).await;
            }
            stored
        })
    }

    fn swap_note<'a>(
        &'a self,
        election: &'a ElectionName,
        note: Note,
        expected: Option<&'a Stored>,
        token: FencingToken,
        body: Vec<u8>,
    ) -> BoxFuture<'a, Result<Swapped>> {
        Box::pin(async move {
            if self.is(Bug::NotesCompareNothing) {
                let there = self.inner.read_note(election, note).await?;
                return self.inner.swap_note(election, note, there.as_ref(), token, body).await;
            }
            if self.is(Bug::WritesNotesInTheBackground) {
                let (inner, election, expected) = (self.inner.clone(), election.clone(), expected.cloned());
                let write = tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    inner.swap_note(&election, note, expected.as_ref(), token, body).await
                });
                return write.await.expect("the task answers");
            }
            self.inner.swap_note(election, note, expected, token, body).await
        })
    }
}
