//! A thousand elections in one process: how long until all are won, and what they cost when nothing happens. Takes the
//! backend's URL from `INCUMBENT_BENCH_ON` (default `memory:`) and prints one line of JSON.

#![expect(clippy::print_stdout, reason = "a bench prints its result")]

use std::time::Duration;

use incumbent::{CampaignEvent, clock};

const ELECTIONS: usize = 1000;
const IDLE: Duration = Duration::from_secs(20);

fn main() {
    let url = std::env::var("INCUMBENT_BENCH_ON").unwrap_or_else(|_| "memory:".to_owned());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let connection = incumbent::connect(&url).await.expect("a connection");
        let start = clock::now();
        let mut campaigns: Vec<_> = (0..ELECTIONS)
            .map(|i| connection.election(format!("bench-{i}")).candidate("bench").campaign().expect("a campaign"))
            .collect();
        let mut terms = Vec::new();
        for campaign in &mut campaigns {
            loop {
                match campaign.next().await.expect("the campaign goes on") {
                    CampaignEvent::Elected(leadership) => break terms.push(leadership),
                    event => drop(event),
                }
            }
        }
        let acquired = clock::now().since(start);
        let (cpu, idle_from) = (cpu_ms(), clock::now());
        tokio::time::sleep(IDLE).await;
        let share = (cpu_ms() - cpu) as f64 / clock::now().since(idle_from).as_millis() as f64 * 100.0;
        let kept = terms.iter().filter(|term| term.is_valid()).count();
        println!(
            "{{\"elections\":{ELECTIONS},\"acquired_ms\":{},\"kept\":{kept},\"rss_mib\":{:.1},\"idle_core_percent\":{share:.2}}}",
            acquired.as_millis(),
            rss_mib(),
        );
    });
}

/// CPU time of this process so far, user and system.
fn cpu_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("/proc");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime");
    ticks * 1000 / rustix::param::clock_ticks_per_second()
}

fn rss_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    line.split_whitespace().nth(1).expect("a number").parse::<f64>().expect("a number") / 1024.0
}
