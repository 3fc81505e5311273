//! A former leader on Consul that does not know yet that it is one.
#![cfg(feature = "consul")]

use std::time::Duration;

use incumbent::Settings;
use incumbent_core::{Acquired, Backend, CandidateId, Claim, ElectionName, Grant, Nonce, Renewed};
use testkit::Consul;
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(10);
const KEY: &str = "billing/.lock";

fn claim(id: &str, nonce: u128) -> Claim {
    Claim {
        election: ElectionName::new("billing").expect("a valid name"),
        id: CandidateId::new(id).expect("a valid name"),
        nonce: Nonce(nonce),
        address: None,
        ttl: TTL,
    }
}

async fn win(backend: &dyn Backend, claim: &Claim) -> Grant {
    loop {
        if let Ok(Acquired::Granted(grant)) = backend.try_acquire(claim).await {
            return grant;
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// An operator destroys its session, another one takes the lock, and it releases what it believes to hold, before it has looked.
#[tokio::test]
async fn one_whose_session_was_destroyed_releases_nothing_of_its_successor() {
    let consul = Consul::single().start().expect("Consul starts");
    let settings = Settings { ttl: TTL, ..Settings::default() };
    let open =
        || incumbent::backend::factory(&consul.url(), &settings).expect("a valid URL")().expect("a backend");
    let (one, other) = (open(), open());
    let (first, second) = (claim("a", 1), claim("b", 2));
    let old = win(&*one, &first).await;
    let session = consul.holder(KEY).expect("a leads");
    consul.call("PUT", &format!("/v1/session/destroy/{session}"), "");
    let new = win(&*other, &second).await;
    one.release(&first, Some(&old), None).await.expect("there is nothing to release");
    assert!(consul.holder(KEY).is_some(), "it has released its successor's lock");
    let renewed = other.renew(&second, &new).await.expect("the store answers");
    assert!(matches!(renewed, Renewed::Extended { .. }), "{renewed:?}");
}
