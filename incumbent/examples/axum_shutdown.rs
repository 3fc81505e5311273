//! A web server that serves on exactly one replica. SIGTERM lets requests that are under way finish, *while the lease is still
//! renewed*, and only then hands over: `cargo run -p incumbent --example axum_shutdown -- file: 127.0.0.1:8080`, in two terminals.

use std::io;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use incumbent::Leadership;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() {
    if let Err(error) = lead().await {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

async fn lead() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "file:".into());
    let address = args.next().unwrap_or_else(|| "127.0.0.1:8080".into());
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let shutdown = async {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
    };

    let election = incumbent::connect(&url).await?.election("web");
    let candidate = election.candidate(format!("web-{}", std::process::id())).advertise(&address);
    eprintln!("standing for election");
    let served = candidate.run_until(shutdown, async |leadership| serve(&address, leadership).await).await?;
    served.transpose()?; // the server's own error, if it had one
    eprintln!("done");
    Ok(())
}

/// Serves until the term is told to stop, and until every request has its answer. A lost term drops all of this.
async fn serve(address: &str, leadership: Leadership) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let token = leadership.token().map_or(0, |token| token.0);
    eprintln!("serving at http://{address} with token {token}");
    let slow = || async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        "finished\n"
    };
    let app = Router::new()
        .route("/", get(move || async move { format!("token {token}\n") }))
        .route("/slow", get(slow));
    let stop = async move {
        let stopping = leadership.stopping().await;
        eprintln!("no new requests: {:?}", stopping.reason);
    };
    axum::serve(listener, app).with_graceful_shutdown(stop).await
}
