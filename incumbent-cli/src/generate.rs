//! `completions` and `man`: made from the same definition as the parser and the help.

use std::process::ExitCode;

use clap::CommandFactory;
use incumbent::{Error, ErrorKind, Result};

use crate::args::{Arguments, CompletionsArgs, ManArgs};
use crate::{exit, output};

const NAME: &str = "incumbent";

pub(crate) fn completions(args: &CompletionsArgs) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Arguments::command(), NAME, &mut text);
    output::conclude(false, output::print(&text).map(|()| ExitCode::SUCCESS))
}

pub(crate) fn man(args: &ManArgs) -> ExitCode {
    let page = match page(&args.command) {
        Ok(page) => page,
        Err(message) => {
            output::tell(&message);
            return ExitCode::from(exit::USAGE);
        }
    };
    output::conclude(false, page.and_then(|page| output::print(&page)).map(|()| ExitCode::SUCCESS))
}

/// The page of a subcommand, one word for each level, or of the whole.
fn page(of: &[String]) -> Result<Result<Vec<u8>>, String> {
    let mut command = Arguments::command();
    command.build();
    for of in of {
        let names: Vec<String> = command.get_subcommands().map(|known| known.get_name().to_owned()).collect();
        let Some(found) = command.find_subcommand(of) else {
            return Err(if names.is_empty() {
                format!("{} has no commands", command.get_bin_name().unwrap_or(NAME))
            } else {
                format!("there is no command {of}; known are {}", names.join(", "))
            });
        };
        command = found.clone();
    }
    let mut page = Vec::new();
    // A command below the first has no version of its own.
    let source = concat!("incumbent ", env!("CARGO_PKG_VERSION"));
    let rendered = clap_mangen::Man::new(command).source(source).render(&mut page);
    let failed = |error| Error::new(ErrorKind::Internal, "the page cannot be made").with_source(error);
    Ok(rendered.map(|()| page).map_err(failed))
}
