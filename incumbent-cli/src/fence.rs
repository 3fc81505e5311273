//! `fence show|adopt|etcd|redis|sql`: what a fence has seen, and the operator's act when an election moves to another authority.

use std::process::ExitCode;

use incumbent::fence::etcd::EtcdFence;
use incumbent::fence::file::FileFence;
use incumbent::fence::redis::RedisFence;
use incumbent::fence::sql::{Dialect, SqlFence};
use incumbent::{Authority, FencingToken, HighWater};
use serde::Serialize;

use crate::args::{FenceAction, FenceAdoptArgs, FenceEtcdArgs, FenceRedisArgs, FenceShowArgs, FenceSqlArgs};
use crate::exit;
use crate::output::{Answer, conclude, print, print_json};

pub(crate) fn fence(action: &FenceAction) -> ExitCode {
    match action {
        FenceAction::Show(args) => conclude(args.json, show(args)),
        FenceAction::Adopt(args) => conclude(args.json, adopt(args)),
        FenceAction::Etcd(args) => conclude(false, etcd(args)),
        FenceAction::Redis(args) => conclude(false, redis(args)),
        FenceAction::Sql(args) => conclude(false, sql(args)),
    }
}

#[derive(Serialize)]
struct Shown<'a> {
    mark: Option<&'a HighWater>,
}

#[derive(Serialize)]
struct Adopted<'a> {
    before: Option<&'a HighWater>,
    mark: &'a HighWater,
}

fn show(args: &FenceShowArgs) -> Answer {
    let mark = FileFence::new(&args.file).stored()?;
    if args.json {
        print_json(&Shown { mark: mark.as_ref() })?;
    } else {
        print(format!("{}\n", in_words(mark.as_ref())).as_bytes())?;
    }
    Ok(ExitCode::from(if mark.is_some() { exit::OK } else { exit::NO }))
}

fn adopt(args: &FenceAdoptArgs) -> Answer {
    let mark = mark(&args.authority, args.token);
    let before = FileFence::new(&args.file).adopt(&mark)?;
    if args.json {
        print_json(&Adopted { before: before.as_ref(), mark: &mark })?;
    } else {
        let (before, now) = (in_words(before.as_ref()), in_words(Some(&mark)));
        print(format!("before  {before}\nnow     {now}\n").as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn etcd(args: &FenceEtcdArgs) -> Answer {
    let command = EtcdFence::new(&args.key).adopt_text(&mark(&args.authority, args.token));
    print(format!("{command}\n").as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// What goes to stdout is a script, or a command for a shell.
fn redis(args: &FenceRedisArgs) -> Answer {
    let text = match (&args.adopt, &args.authority) {
        (Some(key), Some(authority)) => RedisFence::new(key).adopt_text(&mark(authority, args.token)) + "\n",
        _ => RedisFence::script(""),
    };
    print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Only SQL goes to stdout, comments included, so that a database's shell can read it.
fn sql(args: &FenceSqlArgs) -> Answer {
    let dialect = args.dialect;
    let text = match (&args.adopt, &args.authority) {
        (Some(fence), Some(authority)) => {
            SqlFence::new(dialect, fence).adopt_text(&mark(authority, args.token))? + ";\n"
        }
        _ => {
            let commented = |sql: &str| sql.lines().map(|line| format!("--   {line}\n")).collect::<String>();
            let ddl = dialect.ddl();
            // MySQL's shell would send the pieces between two semicolons.
            let ddl = match dialect {
                Dialect::Mysql => format!("DELIMITER //\n{ddl}\n//\nDELIMITER ;"),
                _ => format!("{ddl};"),
            };
            format!(
                "-- The table of the fences.\n{ddl}\n\
                 -- A writer runs this first in its transaction; parameters: fence, authority, token.\n{}\
                 -- Then this, and goes on only if it finds its own authority and token; parameter: fence.\n{}",
                commented(dialect.raise()),
                commented(dialect.read()),
            )
        }
    };
    print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn mark(authority: &str, token: u64) -> HighWater {
    HighWater { authority: Authority::new(authority), token: FencingToken(token) }
}

fn in_words(mark: Option<&HighWater>) -> String {
    mark.map_or("no token was seen yet".to_owned(), |mark| {
        format!("token {} of {}", mark.token, mark.authority)
    })
}
