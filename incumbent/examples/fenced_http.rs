//! A service that takes charges from the leader of an election, and from no earlier one. Start it twice with the same fence, as
//! replicas: `cargo run -p incumbent --features http --example fenced_http -- 127.0.0.1:8081 /tmp/ledger.fence`. A leader writes to either:
//!
//! ```text
//! incumbent run billing -- sh -c 'curl -X POST http://127.0.0.1:8081/charges \
//!     -H "Fencing-Token: $INCUMBENT_TOKEN" -H "Fencing-Authority: $INCUMBENT_AUTHORITY"'
//! ```

use axum::routing::post;
use axum::{Extension, Router};
use incumbent::HighWater;
use incumbent::fence::file::FileFence;
use incumbent::fence::http::FenceLayer;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() {
    if let Err(error) = lead().await {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

async fn lead() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(address), Some(fence)) = (args.next(), args.next()) else {
        return Err("usage: fenced_http ADDRESS FENCE".into());
    };
    let fence = FenceLayer::new(FileFence::new(fence));
    let app = Router::new().route("/charges", post(charge).get(list)).layer(fence);
    let listener = TcpListener::bind(&address).await?;
    eprintln!("serving at http://{address}");
    Ok(axum::serve(listener, app).await?)
}

/// A database would be shown the mark once more, in the transaction that writes.
async fn charge(Extension(mark): Extension<HighWater>) -> String {
    format!("charged under token {}\n", mark.token)
}

/// Reading needs no token.
async fn list() -> &'static str {
    "nothing is kept here\n"
}
