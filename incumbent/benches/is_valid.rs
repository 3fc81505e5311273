//! What `Leadership::is_valid()` costs beside one read of the boot clock. Prints one line of JSON.
//!
//! The two are measured in turns, so that what else the machine does touches both alike.

#![expect(clippy::print_stdout, reason = "a bench prints its result")]

use std::hint::black_box;

use incumbent::clock;

const ROUNDS: usize = 60;
const CALLS: u32 = 200_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let election = incumbent::connect("memory:bench").await.expect("a connection").election("bench");
        let run = election.candidate("bench").run(|leadership| {
            let is_valid = || black_box(leadership.is_valid());
            let (mut ours, mut clocks) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                ours.push(nanos_per_call(is_valid));
                clocks.push(nanos_per_call(|| black_box(clock::now().as_nanos()) != 0));
            }
            std::future::ready((median(ours), median(clocks)))
        });
        let (ours, clock) = run.await.expect("the work's output");
        println!(
            "{{\"is_valid_ns\":{ours:.1},\"clock_gettime_ns\":{clock:.1},\"ratio\":{:.2}}}",
            ours / clock
        );
    });
}

fn nanos_per_call(call: impl Fn() -> bool) -> f64 {
    let start = clock::now();
    for _ in 0..CALLS {
        assert!(call());
    }
    clock::now().since(start).as_nanos() as f64 / f64::from(CALLS)
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
