//! The client against real etcd servers of both versions.

mod access;
mod calls;
mod endpoints;
mod watches;

use std::time::Duration;

use incumbent_core::Result;
use testkit::{Etcd, Version};

use super::client::{Client, Reply};
use super::connection::Config;
use super::failure::Effect;
use super::proto::{DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest};

/// Ample for a healthy server on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

/// For one endpoint of several.
const PATIENCE: Duration = Duration::from_millis(200);

/// Runs a test on the kind of runtime that the driver has.
fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
}

fn single(version: Version) -> Etcd {
    Etcd::single(version).start().expect("etcd starts")
}

fn client(endpoints: Vec<String>) -> Client {
    Client::new(Config { endpoints, tls: None, credentials: None, patience: PATIENCE }).expect("a client")
}

fn put(key: &str, value: &str) -> PutRequest {
    PutRequest { key: key.into(), value: value.into(), ..Default::default() }
}

fn get(key: &str) -> RangeRequest {
    RangeRequest { key: key.into(), ..Default::default() }
}

impl Client {
    async fn put(&self, request: PutRequest, limit: Duration) -> Result<Reply<PutResponse>> {
        self.call(request, Effect::Write, limit).await
    }

    async fn delete(
        &self,
        request: DeleteRangeRequest,
        limit: Duration,
    ) -> Result<Reply<DeleteRangeResponse>> {
        self.call(request, Effect::Write, limit).await
    }
}
