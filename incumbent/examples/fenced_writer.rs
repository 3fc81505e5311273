//! Replaces a file by each line of its standard input while it leads, under a fence: a leader that froze after its last check and
//! wakes up under another one is refused by the file itself. `cargo run -p incumbent --example fenced_writer -- FILE [URL]`

use std::io::{self, BufRead};
use std::path::Path;

use incumbent::fence::file::FileFence;
use incumbent::{Leadership, Result, blocking};

fn main() {
    if let Err(error) = lead() {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

fn lead() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let file = args.next().ok_or("usage: fenced_writer FILE [URL]")?;
    let url = args.next().unwrap_or_else(|| "file:".into());
    let election = blocking::connect(&url)?.election("fenced-writer");
    let candidate = election.candidate(format!("writer-{}", std::process::id()));
    blocking::run(candidate, |leadership| match write(&leadership, file.as_ref()) {
        Err(error) => eprintln!("refused: {error}"),
        Ok(()) => eprintln!("done"),
    })?;
    Ok(())
}

fn write(leadership: &Leadership, file: &Path) -> Result<()> {
    let fence = FileFence::new(file.with_extension("fence"));
    let mark = leadership.mark()?;
    fence.raise(&mark)?; // from here on no earlier leader writes
    eprintln!("leading with token {}", mark.token);
    for line in io::stdin().lock().lines().map_while(io::Result::ok) {
        // A check here would not be enough: the process may freeze right after it. The fence judges inside the write.
        fence.write(&mark, file, line.as_bytes())?;
        eprintln!("wrote {line:?}");
    }
    Ok(())
}
