//! Adds to a total in Redis while it leads. The script that adds is refused under any but the newest term. In two terminals:
//! `cargo run -p incumbent --features redis --example fenced_redis -- redis://127.0.0.1/ [URL]`

use std::error::Error;
use std::time::Duration;

use incumbent::fence::redis::{RedisFence, refusal};
use incumbent::{HighWater, Leadership};
use redis::aio::MultiplexedConnection;
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
    let server = args.next().ok_or("usage: fenced_redis redis://HOST/ [URL]")?;
    let url = args.next().unwrap_or_else(|| "file:".into());
    let connection = redis::Client::open(server)?.get_multiplexed_async_connection().await?;
    let election = incumbent::connect(&url).await?.election("fenced-redis");
    let candidate = election.candidate(format!("writer-{}", std::process::id()));
    candidate
        .run_until(ctrl_c(), async |leadership| add_all(connection.clone(), leadership).await)
        .await?
        .transpose()?;
    Ok(())
}

async fn add_all(
    mut connection: MultiplexedConnection,
    leadership: Leadership,
) -> Result<(), Box<dyn Error>> {
    let mark = leadership.mark()?;
    eval(&mut connection, &RedisFence::raise(), &mark).await?; // from here on no earlier leader adds
    let add = RedisFence::script("return redis.call('INCRBY', KEYS[2], ARGV[3])");
    while leadership.is_stopping().is_none() {
        let total = eval(&mut connection, &add, &mark).await?;
        eprintln!("token {}: the total is {total}", mark.token);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

async fn eval(
    connection: &mut MultiplexedConnection,
    script: &str,
    mark: &HighWater,
) -> Result<i64, Box<dyn Error>> {
    let mut eval = redis::cmd("EVAL");
    eval.arg(script).arg(2).arg("ledger:fence").arg("ledger:total").arg(&RedisFence::arguments(mark)).arg(1);
    let answer: redis::RedisResult<i64> = eval.query_async(connection).await;
    answer.map_err(|error| match refusal(&error.to_string()) {
        Some(refused) => refused.into(),
        None => error.into(),
    })
}
