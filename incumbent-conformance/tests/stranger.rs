//! A stranger proves a backend of his own, for which he needs nothing but the trait: a small lock service that judges expiry
//! itself, has no tokens, tells nobody anything and lists nobody. What it lacks is said, not left out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use incumbent_conformance::{Harness, Hook, Suite, Verdict};
use incumbent_core::guarantees::{Exclusion, Expiry, Guarantees, Handover, Survives, TokenSource, Transfer};
use incumbent_core::{
    Acquired, Authority, Backend, BootInstant, BoxFuture, BoxStream, CandidateId, Claim, Contender,
    ElectionName, FencingToken, Grant, Leader, Note, Observation, Renewed, Result, Stored, Swapped,
};
use rustix::time::{ClockId, clock_gettime};

fn now() -> BootInstant {
    let time = clock_gettime(ClockId::Boottime);
    BootInstant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

static GUARANTEES: Guarantees = Guarantees {
    exclusion: Exclusion::SingleNode,
    expiry: Expiry::Server,
    token: TokenSource::None,
    transfer: Transfer::NextInLine,
    ttl_min: Duration::from_millis(100),
    expiry_slack: Duration::ZERO,
    renew_spacing: Duration::ZERO,
    takeover_ttls: 1,
    takeover_extra: Duration::ZERO,
    handover: Handover::Polled,
    survives: Survives { crash: false, power_loss: false, failover: false },
    lists_candidates: false,
    summary: "excludes whoever asks this service",
    not_applicable: &[("h_many_connections_leave_nothing_behind", "there are no connections")],
};

/// The service's state, and every connection to it.
#[derive(Clone, Debug, Default)]
struct Service(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    locks: HashMap<ElectionName, (Claim, BootInstant)>,
    notes: HashMap<(ElectionName, Note), Stored>,
    writes: u64,
}

impl Service {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("an unbroken lock")
    }
}

impl State {
    /// The unexpired holder.
    fn holder(&mut self, election: &ElectionName) -> Option<(Claim, BootInstant)> {
        self.locks.retain(|_, (_, until)| *until > now());
        self.locks.get(election).cloned()
    }

    fn observation(&mut self, election: &ElectionName) -> Observation {
        let leader = self.holder(election).map(|(claim, _)| Leader {
            contender: Contender {
                id: claim.id.to_string(),
                nonce: Some(claim.nonce),
                address: claim.address,
            },
            token: None,
            since_unix_ms: None,
        });
        Observation { leader, candidates: None }
    }
}

impl Backend for Service {
    fn guarantees(&self) -> &Guarantees {
        &GUARANTEES
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Acquired>> {
        Box::pin(async move {
            let sent_at = now();
            tokio::task::yield_now().await;
            let mut state = self.state();
            match state.holder(&claim.election) {
                Some((holder, until)) if holder != *claim => {
                    let observation = state.observation(&claim.election);
                    Ok(Acquired::Held { observation, try_again: until })
                }
                _ => {
                    state.locks.insert(claim.election.clone(), (claim.clone(), now() + claim.ttl));
                    let authority = Authority::new("service");
                    Ok(Acquired::Granted(Grant { token: None, authority, sent_at, ttl: claim.ttl }))
                }
            }
        })
    }

    fn renew<'a>(&'a self, claim: &'a Claim, _grant: &'a Grant) -> BoxFuture<'a, Result<Renewed>> {
        Box::pin(async move {
            let sent_at = now();
            tokio::task::yield_now().await;
            let mut state = self.state();
            match state.holder(&claim.election) {
                Some((holder, _)) if holder == *claim => {
                    state.locks.insert(claim.election.clone(), (holder, now() + claim.ttl));
                    Ok(Renewed::Extended { sent_at, ttl: claim.ttl })
                }
                _ => Ok(Renewed::Lost(state.observation(&claim.election))),
            }
        })
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        _grant: Option<&'a Grant>,
        _next: Option<&'a CandidateId>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            self.state().locks.retain(|_, (holder, _)| holder != claim);
            Ok(())
        })
    }

    fn observe<'a>(&'a self, election: &'a ElectionName) -> BoxFuture<'a, Result<Observation>> {
        Box::pin(async { Ok(self.state().observation(election)) })
    }

    fn watch<'a>(
        &'a self,
        _election: &'a ElectionName,
        _campaign: Option<&'a Claim>,
    ) -> Option<BoxStream<'a, Result<()>>> {
        None
    }

    fn read_note<'a>(
        &'a self,
        election: &'a ElectionName,
        note: Note,
    ) -> BoxFuture<'a, Result<Option<Stored>>> {
        Box::pin(async move { Ok(self.state().notes.get(&(election.clone(), note)).cloned()) })
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
            let sent_at = now();
            let mut state = self.state();
            let place = (election.clone(), note);
            if state.notes.get(&place) != expected {
                return Ok(Swapped::Conflict);
            }
            state.writes += 1;
            let version = state.writes;
            state.notes.insert(place, Stored { version, token: token.0, body });
            Ok(Swapped::Done { version, token: token.0, sent_at })
        })
    }
}

struct OwnStore(Service);

impl Harness for OwnStore {
    fn connect(&self) -> BoxFuture<'_, Result<Arc<dyn Backend>>> {
        Box::pin(async { Ok(Arc::new(self.0.clone()) as Arc<dyn Backend>) })
    }

    fn delete<'a>(&'a self, election: &'a ElectionName) -> Hook<'a> {
        self.0.state().locks.remove(election);
        Ok(Box::pin(async { Ok(()) }))
    }
}

#[test]
fn a_backend_of_ones_own_is_proved_and_what_it_lacks_is_said() {
    let report = Suite::new(OwnStore(Service::default())).terms(100).run().expect("the suite runs");
    assert!(report.is_ok(), "{report}");
    let said = |case: &str| {
        let found = report.cases.iter().find(|report| report.case == case).expect("the case is reported");
        match &found.verdict {
            Verdict::NotApplicable { reason } => reason.clone(),
            verdict => panic!("{case}: {verdict}"),
        }
    };
    assert_eq!(said("r2_tokens_rise_over_release"), "the backend issues no tokens");
    assert_eq!(said("r10_a_release_is_hinted"), "the backend declares that standbys poll");
    assert_eq!(
        said("handover_the_candidate_that_is_named_wins"),
        "the backend declares that the next in line follows"
    );
    assert_eq!(said("h_many_connections_leave_nothing_behind"), "there are no connections");
    assert_eq!(said("r3_a_stalled_store_proves_nothing"), "the harness cannot stall the store's disk");
    let passed = report.count(|verdict| *verdict == Verdict::Ok);
    assert!(passed > 35, "only {passed} cases ran: {report}");
    // For programs: one object for each case.
    let json = serde_json::to_value(&report).expect("a report can be written as JSON");
    assert_eq!(json["cases"][0]["verdict"], "ok");
    assert_eq!(json["guarantees"]["token"], "none");
}
