//! The driver: runs the replicas and strikes whoever leads, until all are charged. Then it audits the ledger.

pub mod replica;
pub mod run;
