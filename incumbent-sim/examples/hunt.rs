//! Looks for the first seed that breaks an invariant: `hunt SUBJECT SEEDS`. Ends with 1 if there is one.

use std::process::ExitCode;

use incumbent_sim::outcome::Shown;
use incumbent_sim::soak::Subject;

#[expect(clippy::print_stdout, reason = "its result")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [subject, seeds] = &arguments[..] else {
        println!("usage: hunt SUBJECT SEEDS; the subjects are {:?}", Subject::all().map(Subject::name));
        return ExitCode::from(2);
    };
    let (Some(subject), Ok(seeds)) = (Subject::named(subject), seeds.parse::<u64>()) else {
        println!("unknown subject or number: {arguments:?}");
        return ExitCode::from(2);
    };
    for seed in 0..seeds {
        if let Some(violation) = subject.run(seed, Shown::Nothing).violations.first() {
            println!("seed {seed}: {violation}");
            return ExitCode::FAILURE;
        }
    }
    println!("{seeds} seeds pass");
    ExitCode::SUCCESS
}
