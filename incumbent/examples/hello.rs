//! The smallest leader: `cargo run -p incumbent --example hello` in two terminals; then Ctrl-C in the one that leads.

use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    if let Err(error) = lead().await {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

async fn lead() -> incumbent::Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "file:".into());
    let election = incumbent::connect(&url).await?.election("hello");
    let id = format!("hello-{}", std::process::id());
    eprintln!("{id} stands for election");
    let work = async |leadership: incumbent::Leadership| {
        eprintln!("{id} leads, with token {}", leadership.token().map_or(0, |token| token.0));
        while leadership.is_stopping().is_none() {
            tokio::time::sleep(Duration::from_millis(100)).await; // here goes what only one may do
        }
    };
    election.candidate(&id).run_until(tokio::signal::ctrl_c(), work).await?;
    eprintln!("{id} is done");
    Ok(())
}
