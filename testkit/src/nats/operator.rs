//! Servers in the operator mode of NATS: an operator signs accounts, an account signs users, and a user shows a JWT and signs a nonce.

use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde_json::{Value, json};

use crate::error::{Error, Result};

/// One operator with an account for its servers, one for elections, and a user in it.
pub(super) struct Operator {
    /// The lines of a server's configuration.
    pub(super) config: String,
    jwt: String,
    user: KeyPair,
}

impl Operator {
    pub(super) fn new() -> Operator {
        let (operator, system, account, user) =
            (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account(), KeyPair::new_user());
        let limits = json!({
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1,
            "leaf": -1, "mem_storage": 10_000_000, "disk_storage": 100_000_000, "streams": -1, "consumer": -1,
        });
        let without_jetstream = json!({
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
        });
        let of_account = |limits: Value| json!({"type": "account", "version": 2, "limits": limits});
        let of_user = json!({"type": "user", "version": 2, "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1});
        let own = jwt(&operator, &operator, "testkit", json!({"type": "operator", "version": 2}));
        let config = format!(
            "operator: {own}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{ {}: {}, {}: {} }}\n",
            system.public_key(),
            system.public_key(),
            jwt(&operator, &system, "system", of_account(without_jetstream)),
            account.public_key(),
            jwt(&operator, &account, "elections", of_account(limits)),
        );
        Operator { config, jwt: jwt(&account, &user, "app", of_user), user }
    }

    /// The user's credentials file, written into `dir`.
    pub(super) fn write_creds(&self, dir: &Path) -> Result<()> {
        let seed = self.user.seed().map_err(|e| Error::new(e.to_string()))?;
        let text = format!(
            "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n",
            self.jwt
        );
        fs::write(dir.join("creds"), text).map_err(|e| Error::new(e.to_string()))
    }

    /// What lets the user in to a server that asked for a signature of `nonce`.
    pub(super) fn login(&self, nonce: &str) -> Value {
        let signature = self.user.sign(nonce.as_bytes()).expect("a user can sign");
        json!({"jwt": self.jwt, "sig": URL_SAFE_NO_PAD.encode(signature)})
    }
}

fn jwt(by: &KeyPair, about: &KeyPair, name: &str, claims: Value) -> String {
    let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let head = encode(json!({"typ": "JWT", "alg": "ed25519-nkey"}));
    let body = encode(json!({
        "jti": name, "iat": 1_700_000_000, "iss": by.public_key(), "name": name, "sub": about.public_key(),
        "nats": claims,
    }));
    let signature = by.sign(format!("{head}.{body}").as_bytes()).expect("a pair can sign");
    format!("{head}.{body}.{}", URL_SAFE_NO_PAD.encode(signature))
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operator").finish_non_exhaustive()
    }
}
