//! What the API server itself says that it was asked.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

/// One request about Leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who asked.
    pub user: String,
    /// `get`, `create`, `update`, `watch`, …
    pub verb: String,
    /// The Lease, if one was named.
    pub name: String,
    /// The status of the answer; of a watch, of its beginning.
    pub code: u64,
}

/// Writes the policy, and gives the server's flags.
pub(super) fn flags(dir: &Path) -> std::io::Result<[String; 2]> {
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            { "level": "Metadata", "resources": [{ "group": "coordination.k8s.io", "resources": ["leases"] }] },
            { "level": "None" },
        ],
    });
    let path = dir.join("audit-policy.json");
    fs::write(&path, policy.to_string())?;
    Ok([
        format!("--audit-policy-file={}", path.display()),
        format!("--audit-log-path={}", log(dir).display()),
    ])
}

fn log(dir: &Path) -> std::path::PathBuf {
    dir.join("audit.log")
}

/// The requests so far, in the order in which they were begun.
pub(super) fn read(dir: &Path) -> Vec<Request> {
    let text = fs::read_to_string(log(dir)).unwrap_or_default();
    // A watch is written twice: at its beginning and at its end.
    let mut requests = BTreeMap::new();
    for event in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let field = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let request = Request {
            user: field(&event["user"]["username"]),
            verb: field(&event["verb"]),
            name: field(&event["objectRef"]["name"]),
            code: event["responseStatus"]["code"].as_u64().unwrap_or(0),
        };
        let key = (field(&event["requestReceivedTimestamp"]), field(&event["auditID"]));
        requests.entry(key).or_insert(request);
    }
    requests.into_values().collect()
}
