//! Candidates on a real Redis that operators, outages and fail-overs interfere with, and the store itself under the measured
//! counter-examples of lock recipes: late answers, lost writes, stale replicas, evictions.
#![cfg(feature = "redis")]

mod redis_faults {
    mod failover;
    mod refusals;
    mod renewals;
    mod support;
}
