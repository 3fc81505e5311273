//! Candidates on a real NATS that operators, outages and fail-overs interfere with, and the store itself under the measured
//! counter-examples of lock recipes: late answers, queued renewals, stale reads, lost writes.
#![cfg(feature = "nats")]

mod nats_faults {
    mod failover;
    mod refusals;
    mod renewals;
    mod support;
}
