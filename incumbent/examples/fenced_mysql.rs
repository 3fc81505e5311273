//! Writes rows into MySQL or MariaDB while it leads, each in a transaction that commits only under the newest term. Once beforehand:
//! `incumbent fence sql --dialect mysql | mysql app`, and `mysql app -e 'CREATE TABLE charge (customer INT, token BIGINT)'`. Then, in two
//! terminals: `cargo run -p incumbent --example fenced_mysql -- mysql://app:PASSWORD@127.0.0.1/app [URL]`

use std::error::Error;
use std::time::Duration;

use incumbent::Leadership;
use incumbent::fence::sql::{self, Dialect, SqlFence};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use tokio::signal::ctrl_c;

#[tokio::main]
async fn main() {
    if let Err(error) = lead().await {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

async fn lead() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let database = Opts::from_url(&args.next().ok_or("usage: fenced_mysql DATABASE [URL]")?)?;
    let url = args.next().unwrap_or_else(|| "file:".into());
    let election = incumbent::connect(&url).await?.election("fenced-mysql");
    let candidate = election.candidate(format!("writer-{}", std::process::id()));
    candidate
        .run_until(ctrl_c(), async |leadership| charge_all(&database, leadership).await)
        .await?
        .transpose()?;
    Ok(())
}

/// On a connection of its own: nothing that an earlier term began is open on it.
async fn charge_all(database: &Opts, leadership: Leadership) -> Result<(), Box<dyn Error>> {
    let mut conn = Conn::new(database.clone()).await?;
    let fence = SqlFence::new(Dialect::Mysql, "charges");
    conn.query_drop(fence.raise_text(&leadership)?).await?; // from here on no earlier leader writes
    let last: Option<u32> = conn.query_first("SELECT COALESCE(MAX(customer), 0) FROM charge").await?;
    let mut customer = last.unwrap_or(0);
    while leadership.is_stopping().is_none() {
        customer += 1;
        let begin = fence.begin_text(&leadership)?;
        // When the term ends first, the server is told to stop too.
        let id = conn.id();
        let cancel =
            || async { Conn::new(database.clone()).await?.query_drop(format!("KILL QUERY {id}")).await };
        sql::guard(&leadership, charge(&mut conn, &begin, customer), cancel).await??;
        eprintln!("charged customer {customer}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

async fn charge(conn: &mut Conn, begin: &str, customer: u32) -> Result<(), mysql_async::Error> {
    conn.query_drop(begin).await?;
    let token = "(SELECT token FROM incumbent_fence WHERE name = 'charges')";
    conn.exec_drop(format!("INSERT INTO charge VALUES (?, {token})"), (customer,)).await?;
    conn.query_drop("COMMIT").await
}
