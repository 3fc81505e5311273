//! Writes rows into PostgreSQL while it leads, each in a transaction that commits only under the newest term. Once beforehand:
//! `incumbent fence sql --dialect postgres | psql`, and `psql -c 'CREATE TABLE charge (customer int, token bigint)'`. Then, in two terminals:
//! `cargo run -p incumbent --example fenced_postgres -- 'host=127.0.0.1 user=app' [URL]`

use std::error::Error;
use std::time::Duration;

use incumbent::Leadership;
use incumbent::fence::sql::{self, Dialect, SqlFence};
use tokio::signal::ctrl_c;
use tokio_postgres::{Client, NoTls};

#[tokio::main]
async fn main() {
    if let Err(error) = lead().await {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

async fn lead() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let database = args.next().ok_or("usage: fenced_postgres DATABASE [URL]")?;
    let url = args.next().unwrap_or_else(|| "file:".into());
    let election = incumbent::connect(&url).await?.election("fenced-postgres");
    let candidate = election.candidate(format!("writer-{}", std::process::id()));
    candidate
        .run_until(ctrl_c(), async |leadership| charge_all(&database, leadership).await)
        .await?
        .transpose()?;
    Ok(())
}

/// On a connection of its own: nothing that an earlier term began is open on it.
async fn charge_all(database: &str, leadership: Leadership) -> Result<(), Box<dyn Error>> {
    let (client, connection) = tokio_postgres::connect(database, NoTls).await?;
    tokio::spawn(connection);
    let fence = SqlFence::new(Dialect::Postgres, "charges");
    client.batch_execute(&fence.raise_text(&leadership)?).await?; // from here on no earlier leader writes
    let mut customer = client.query_one("SELECT coalesce(max(customer), 0) FROM charge", &[]).await?.get(0);
    while leadership.is_stopping().is_none() {
        customer += 1;
        let begin = fence.begin_text(&leadership)?;
        // When the term ends first, the server is told to stop too.
        let cancel = client.cancel_token();
        sql::guard(&leadership, charge(&client, &begin, customer), || cancel.cancel_query(NoTls)).await??;
        eprintln!("charged customer {customer}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

async fn charge(client: &Client, begin: &str, customer: i32) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(begin).await?;
    let token = "(SELECT token FROM incumbent_fence WHERE name = 'charges')";
    client.execute(&format!("INSERT INTO charge VALUES ($1, {token})"), &[&customer]).await?;
    client.batch_execute("COMMIT").await
}
