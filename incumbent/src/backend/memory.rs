//! `memory:[NAME]`: elections among the threads and tasks of one process. What has the same name shares them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use incumbent_core::guarantees::{Exclusion, Expiry, Guarantees, Handover, Survives, TokenSource, Transfer};
use incumbent_core::record::{RecordKey, RecordStore, TokenRule};
use incumbent_core::{
    Authority, BoxFuture, BoxStream, Claim, Contender, ElectionName, Nonce, Result, Settings, Stored, Swapped,
};

use crate::backend::record::RecordBackend;
use crate::backend::signals::Signals;
use crate::clock;
use crate::thread::Factory;
use crate::url::{StoreUrl, bad};

static SUMMARY: &str = "excludes only candidates in this process";

pub(crate) fn guarantees() -> Guarantees {
    Guarantees {
        exclusion: Exclusion::SingleNode,
        expiry: Expiry::Challenger,
        token: TokenSource::Counter,
        transfer: Transfer::Targeted,
        ttl_min: Duration::from_millis(100),
        expiry_slack: Duration::ZERO,
        renew_spacing: Duration::ZERO,
        takeover_ttls: 1,
        takeover_extra: Duration::ZERO,
        handover: Handover::Pushed,
        survives: Survives { crash: false, power_loss: false, failover: false },
        lists_candidates: true,
        summary: SUMMARY,
        not_applicable: &[],
    }
}

pub(crate) fn open(url: &StoreUrl, _settings: &Settings) -> Result<Factory> {
    url.only(&[])?;
    if !url.hosts.is_empty() {
        return Err(bad("memory: has no host; write memory: or memory:NAME"));
    }
    let space = Space::named(&url.path);
    Ok(Box::new(move || Ok(Arc::new(RecordBackend::new(MemoryStore { space, guarantees: guarantees() })))))
}

/// What all connections to one name share.
#[derive(Debug)]
struct Space {
    authority: Authority,
    inner: Mutex<Inner>,
    signals: Signals,
}

#[derive(Debug, Default)]
struct Inner {
    records: BTreeMap<RecordKey, Stored>,
    candidates: BTreeMap<ElectionName, BTreeMap<Nonce, Contender>>,
    /// Counts writes of the whole space: never goes back, whatever is deleted.
    count: u64,
}

impl Space {
    fn named(name: &str) -> Arc<Space> {
        static SPACES: OnceLock<Mutex<BTreeMap<String, Arc<Space>>>> = OnceLock::new();
        let spaces = SPACES.get_or_init(Mutex::default);
        let mut spaces = spaces.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            let authority = Authority::new(format!("memory:{}:{name}", std::process::id()));
            Arc::new(Space { authority, inner: Mutex::default(), signals: Signals::default() })
        };
        spaces.entry(name.to_owned()).or_insert_with(new).clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct MemoryStore {
    space: Arc<Space>,
    guarantees: Guarantees,
}

impl RecordStore for MemoryStore {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn authority(&self) -> Authority {
        self.space.authority.clone()
    }

    fn led_without_record<'a>(&'a self, _claim: &'a Claim) -> BoxFuture<'a, Option<Duration>> {
        // Nobody can remove it.
        Box::pin(std::future::ready(None))
    }

    fn read<'a>(&'a self, key: &'a RecordKey) -> BoxFuture<'a, Result<Option<Stored>>> {
        Box::pin(async move { Ok(self.space.lock().records.get(key).cloned()) })
    }

    fn swap<'a>(
        &'a self,
        key: &'a RecordKey,
        expected: Option<&'a Stored>,
        token: TokenRule,
        body: Vec<u8>,
    ) -> BoxFuture<'a, Result<Swapped>> {
        Box::pin(async move {
            let sent_at = clock::now();
            let mut inner = self.space.lock();
            let there = inner.records.get(key);
            let same = |there: &Stored, expected: &Stored| {
                there.version == expected.version && there.token == expected.token
            };
            match (there, expected) {
                (None, None) => {}
                (Some(there), Some(expected)) if same(there, expected) => {}
                _ => return Ok(Swapped::Conflict),
            }
            let old = there.map_or(0, |there| there.token);
            inner.count += 1;
            let version = inner.count;
            let token = match token {
                TokenRule::Keep => old,
                TokenRule::Raise => version,
                TokenRule::Set(token) => token.0,
            };
            inner.records.insert(key.clone(), Stored { version, token, body });
            drop(inner);
            self.space.signals.send(key.election.as_str());
            Ok(Swapped::Done { version, token, sent_at })
        })
    }

    fn changes<'a>(&'a self, election: &'a ElectionName) -> Option<BoxStream<'a, Result<()>>> {
        Some(self.space.signals.subscribe(election.as_str()))
    }

    fn hold<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Option<String>>> {
        Box::pin(async move {
            let contender = Contender {
                id: claim.id.to_string(),
                nonce: Some(claim.nonce),
                address: claim.address.clone(),
            };
            let mut inner = self.space.lock();
            inner.candidates.entry(claim.election.clone()).or_default().insert(claim.nonce, contender);
            Ok(None)
        })
    }

    fn let_go(&self, claim: &Claim) -> BoxFuture<'static, ()> {
        let mut inner = self.space.lock();
        if let Some(candidates) = inner.candidates.get_mut(&claim.election) {
            candidates.remove(&claim.nonce);
            if candidates.is_empty() {
                inner.candidates.remove(&claim.election);
            }
        }
        Box::pin(std::future::ready(()))
    }

    fn candidates<'a>(&'a self, election: &'a ElectionName) -> BoxFuture<'a, Result<Option<Vec<Contender>>>> {
        Box::pin(async move {
            let inner = self.space.lock();
            Ok(Some(inner.candidates.get(election).map_or(Vec::new(), |all| all.values().cloned().collect())))
        })
    }
}
