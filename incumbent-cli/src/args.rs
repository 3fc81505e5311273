//! What can be typed: the one definition from which parsing, help, man pages and completions come.
//!
//! Nothing is decided here; see [`store`](crate::store) for what the words mean.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use incumbent::fence::sql::Dialect;
use incumbent::{CandidateId, ElectionName};
use incumbent_sim::report::{Algorithm, NODES_MAX, Scenario};

use crate::exit;

const ENVIRONMENT: &str = "\
Environment:
  INCUMBENT_ON          the backend, where --on is not given
  POD_NAME              the candidate's id, where --id is not given
  NO_COLOR              no colours

A command that `run` starts sees INCUMBENT_ELECTION, INCUMBENT_ID, INCUMBENT_TOKEN,
INCUMBENT_AUTHORITY (who issued the token; fences compare both), INCUMBENT_ON and
INCUMBENT_LEASE_FILE.";

/// Exactly one replica does the job
#[derive(Debug, Parser)]
#[command(name = "incumbent", version, max_term_width = 100, after_long_help = after_help())]
#[command(arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

fn after_help() -> String {
    format!("{ENVIRONMENT}\n\n{}\n\n{}", exit::RUN, exit::OTHERS)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    Check(CheckArgs),
    Observe(ObserveArgs),
    Status(StatusArgs),
    Resign(ResignArgs),
    Transfer(TransferArgs),
    Checkpoint(CheckpointArgs),
    Fence(FenceArgs),
    Peer(PeerArgs),
    Simulate(SimulateArgs),
    Doctor(DoctorArgs),
    Backends(BackendsArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// Where the election is held.
#[derive(Debug, Clone, Args)]
pub(crate) struct StoreArgs {
    /// The backend, as etcd://127.0.0.1:2379 or file:/var/lib/incumbent [env: INCUMBENT_ON]
    ///
    /// Without it the embedded default is used: files on this machine. A password does not belong here, where every
    /// user of the machine can read it: put it into INCUMBENT_ON, or name a file with ?password_file=PATH.
    #[arg(long, value_name = "URL", help_heading = "Store")]
    pub(crate) on: Option<String>,
}

/// What a term is bounded by.
#[derive(Debug, Clone, Args)]
pub(crate) struct TermArgs {
    /// How long a lease lasts without a renewal [default: 15s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// How long before the deadline the command is told to stop when nothing renews the lease [default: ttl/4, at most 5s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) grace: Option<Duration>,
    /// How long the command may take to stop when it is told to, with the lease still renewed; `none` is without bound
    /// [default: 30s]
    #[arg(long, value_name = "DURATION|none", value_parser = bound)]
    pub(crate) drain: Option<Bound>,
}

/// Run a command on exactly one replica
///
/// Stands for election and runs the command while it leads. When the right is lost, the command and everything
/// that it started is killed before another can lead. When the command ends by itself, the election is released and
/// its exit code passed on.
///
/// The first SIGTERM or Ctrl-C sends SIGTERM to the command and lets it finish, a second one kills it at once; two
/// within 100 ms count as one, since some senders signal a process and then its whole group. SIGHUP, SIGQUIT, SIGUSR1 and
/// SIGUSR2 are passed on; what is ignored from the start, as under nohup, stays ignored.
#[derive(Debug, Args)]
#[command(after_long_help = exit::RUN, override_usage = "incumbent run [OPTIONS] <ELECTION> -- <COMMAND>...")]
pub(crate) struct RunArgs {
    /// The election: 1 to 128 of A-Z a-z 0-9 . _ -, the first a letter or digit
    #[arg(value_parser = election)]
    pub(crate) election: ElectionName,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// This candidate's name [default: $POD_NAME, else host:pid]
    #[arg(long, value_parser = candidate)]
    pub(crate) id: Option<CandidateId>,
    /// Where this candidate can be reached while it leads; `status` and `observe` show it
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(crate) advertise: Option<String>,
    #[command(flatten)]
    pub(crate) term: TermArgs,
    /// Run the command again, in a new term, when it ends by itself
    #[arg(long)]
    pub(crate) restart: bool,
    /// Do not stand by: exit with 123 if another leads
    #[arg(long, conflicts_with = "wait_timeout")]
    pub(crate) no_wait: bool,
    /// Stand by for no longer than this, then exit with 124
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait_timeout: Option<Duration>,
    /// Run even on a backend that excludes nobody where a network falls apart, as bully: without majority=true
    ///
    /// Without it `run` refuses such a backend with 125. With it two commands may run at one time, and there is no token.
    #[arg(long)]
    pub(crate) allow_split_brain: bool,
    /// Tell what happens as lines of JSON, on stderr
    #[arg(long)]
    pub(crate) json: bool,
    /// Tell only of warnings and errors
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Tell more; twice, also what the library logs
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// In a job: is my term still good?
///
/// Reads the file that INCUMBENT_LEASE_FILE names and asks nobody. Exit code 0: yes; 1: no, stop at once.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Also say no if less than this is left of the term
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "0s")]
    pub(crate) min: Duration,
    /// Print the answer as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Follow who leads, line by line
#[derive(Debug, Args)]
pub(crate) struct ObserveArgs {
    /// The election
    #[arg(value_parser = election)]
    pub(crate) election: ElectionName,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Print lines of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show who leads and who wants to
///
/// Exit code 1 if nobody leads.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The election
    #[arg(value_parser = election)]
    pub(crate) election: ElectionName,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Ask the leader to give up its term
///
/// The leader drains its job, then whoever is next leads. `run` stands for election again after some seconds. Exit code
/// 1 if nobody leads, the leader cannot be asked or has not gone in time.
#[derive(Debug, Args)]
pub(crate) struct ResignArgs {
    /// The election
    #[arg(value_parser = election)]
    pub(crate) election: ElectionName,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// How long the leader may take
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s")]
    pub(crate) timeout: Duration,
    /// Print the outcome as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Ask the leader to hand over to a candidate
///
/// Exit code 1 if the candidate is not there, a client of another kind stands before it, the leader cannot be asked or has
/// not gone in time, or another than the candidate won; also if the candidate leads already.
#[derive(Debug, Args)]
pub(crate) struct TransferArgs {
    /// The election
    #[arg(value_parser = election)]
    pub(crate) election: ElectionName,
    /// The candidate that shall lead next
    #[arg(long, value_name = "ID", value_parser = candidate)]
    pub(crate) to: CandidateId,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// How long it may take until the candidate leads
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s")]
    pub(crate) timeout: Duration,
    /// Print the outcome as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Read or write the value that one leader leaves for the next
#[derive(Debug, Args)]
pub(crate) struct CheckpointArgs {
    #[command(subcommand)]
    pub(crate) action: CheckpointAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointAction {
    Get(CheckpointGetArgs),
    Put(CheckpointPutArgs),
}

/// Print the value
///
/// In a job it first shuts out late writes of earlier terms, so that it is safe to continue from. Exit code 1 if there is
/// none, or the job's term is over.
#[derive(Debug, Args)]
pub(crate) struct CheckpointGetArgs {
    /// The election [default, in a job: the job's]
    #[arg(value_parser = election)]
    pub(crate) election: Option<ElectionName>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Print the value in JSON, as text if it is text, else in hexadecimal
    #[arg(long)]
    pub(crate) json: bool,
}

/// In a job: replace the value
///
/// It is written under the token of the job's term: exit code 1 if the term is over.
#[derive(Debug, Args)]
pub(crate) struct CheckpointPutArgs {
    /// The file with the value, at most 64 KiB; - is stdin
    #[arg(default_value = "-")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Print the outcome as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show what a fence has seen, or move it to another authority
#[derive(Debug, Args)]
pub(crate) struct FenceArgs {
    #[command(subcommand)]
    pub(crate) action: FenceAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FenceAction {
    Show(FenceShowArgs),
    Adopt(FenceAdoptArgs),
    Etcd(FenceEtcdArgs),
    Redis(FenceRedisArgs),
    Sql(FenceSqlArgs),
}

/// Print the highest token that a fence has seen, and who issued it
///
/// Exit code 1 if it never saw one.
#[derive(Debug, Args)]
pub(crate) struct FenceShowArgs {
    /// The fence's file
    pub(crate) file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Make a fence accept the tokens of another authority
///
/// Where an election has moved for good, to another cluster or state directory, its fences refuse the new tokens, since
/// they cannot be compared with the old ones. The error of the writer that was refused names the new authority. From then on
/// the old one is refused.
#[derive(Debug, Args)]
pub(crate) struct FenceAdoptArgs {
    /// The fence's file
    pub(crate) file: PathBuf,
    /// Who issues the tokens from now on
    #[arg(long)]
    pub(crate) authority: String,
    /// Refuse older tokens than this
    #[arg(long, default_value_t = 0)]
    pub(crate) token: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print the command that makes a fence in etcd accept the tokens of another authority
///
/// For the administrator's shell: it is not run.
#[derive(Debug, Args)]
pub(crate) struct FenceEtcdArgs {
    /// The fence's key
    pub(crate) key: String,
    /// Who issues the tokens from now on
    #[arg(long)]
    pub(crate) authority: String,
    /// Refuse older tokens than this
    #[arg(long, default_value_t = 0)]
    pub(crate) token: u64,
}

/// Print the script of a fence in Redis
///
/// Put it in front of the Lua script that writes. The fence's key is the first key, authority and token are the first arguments.
#[derive(Debug, Args)]
pub(crate) struct FenceRedisArgs {
    /// Instead: the command that makes the fence under this key accept the tokens of another authority
    #[arg(long, value_name = "KEY", requires = "authority")]
    pub(crate) adopt: Option<String>,
    /// With --adopt: who issues the tokens from now on
    #[arg(long, requires = "adopt")]
    pub(crate) authority: Option<String>,
    /// With --adopt: refuse older tokens than this
    #[arg(long, requires = "adopt", default_value_t = 0)]
    pub(crate) token: u64,
}

/// Print the statements of a fence in a database
///
/// The output makes the table when a database's shell reads it, as in: incumbent fence sql | sqlite3 ledger.db
#[derive(Debug, Args)]
pub(crate) struct FenceSqlArgs {
    /// Whose SQL
    #[arg(long, default_value_t = Dialect::Sqlite, value_parser = dialects())]
    pub(crate) dialect: Dialect,
    /// Instead: the statement that makes this fence accept the tokens of another authority
    #[arg(long, value_name = "FENCE", requires = "authority")]
    pub(crate) adopt: Option<String>,
    /// With --adopt: who issues the tokens from now on
    #[arg(long, requires = "adopt")]
    pub(crate) authority: Option<String>,
    /// With --adopt: refuse older tokens than this
    #[arg(long, requires = "adopt", default_value_t = 0)]
    pub(crate) token: u64,
}

/// Be one of the peers that elect among themselves, without a store
#[derive(Debug, Args)]
pub(crate) struct PeerArgs {
    #[command(subcommand)]
    pub(crate) action: PeerAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PeerAction {
    Init(PeerInitArgs),
    Run(PeerRunArgs),
    Add(PeerAddArgs),
    Remove(PeerRemoveArgs),
}

/// Add a peer to those that are there
///
/// Its state is made with incumbent peer init --join, and it may run already. Tells what it waits for; when it ends, the list is on
/// the disks of a majority of its peers, and of those before. Exit code 1 if another change was made at the same time, and this one not.
#[derive(Debug, Args)]
pub(crate) struct PeerAddArgs {
    /// The new peer, and where it listens
    #[arg(value_name = "NAME=HOST:PORT", value_parser = placed)]
    pub(crate) peer: (String, String),
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Print the outcome as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Remove a peer, as one that is lost
///
/// To replace a peer, add the new one first. Exit code 1 if another change was made at the same time, and this one not.
#[derive(Debug, Args)]
pub(crate) struct PeerRemoveArgs {
    /// The peer
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Print the outcome as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn placed(text: &str) -> Result<(String, String), String> {
    let (name, address) = text.split_once('=').ok_or("write NAME=HOST:PORT")?;
    Ok((name.to_owned(), address.to_owned()))
}

/// Make the state of a new peer
///
/// Once in a peer's life: what it promises stands there, and a peer that forgets that can make two leaders. A state that is
/// there already is kept as it is.
#[derive(Debug, Args)]
pub(crate) struct PeerInitArgs {
    /// The folder
    #[arg(long, value_name = "DIR")]
    pub(crate) state: PathBuf,
    /// The peer's name, as in the URL: 1 to 128 of A-Z a-z 0-9 . _ -
    #[arg(long)]
    pub(crate) name: String,
    /// A name for all the peers together, the same at each of them and at no others
    #[arg(long)]
    pub(crate) cluster: String,
    /// Others are there already: take no part until incumbent peer add has added this one
    #[arg(long)]
    pub(crate) join: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Vote, and stand for no election
///
/// A candidate, as with incumbent run, is a peer by itself; this is for the machines on which no candidate runs.
#[derive(Debug, Args)]
pub(crate) struct PeerRunArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// The ttl of the candidates, which all peers must be told [default: 15s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// Tell what happens as lines of JSON, on stderr
    #[arg(long)]
    pub(crate) json: bool,
    /// Tell more; twice, also what the library logs
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

impl PeerRunArgs {
    pub(crate) fn term(&self) -> TermArgs {
        TermArgs { ttl: self.ttl, grace: None, drain: None }
    }
}

/// See an algorithm elect, break and heal, in virtual time
///
/// Runs the election for a simulated 100 s, with a lease of 1 s, on nodes whose network, clocks and processes go wrong as the
/// scenario says, and shows what came of it. The same seed gives the same run. Nothing is connected to and nothing is stored.
///
/// Exit code 1 if two led, or another invariant was broken, where the algorithm promises that this cannot be: not with Bully
/// or Ring without a majority, and not with clocks that are off by more than the nodes were told.
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// How the nodes elect
    #[arg(long, value_parser = algorithms(), required_unless_present = "compare")]
    pub(crate) algorithm: Option<Algorithm>,
    /// All algorithms side by side, on one seed
    #[arg(long, conflicts_with = "algorithm")]
    pub(crate) compare: bool,
    /// A leader of bully or ring needs the acknowledgement of a majority
    #[arg(long)]
    pub(crate) majority: bool,
    /// What goes wrong
    #[arg(long, value_parser = scenarios(), default_value = "leader-crash")]
    pub(crate) scenario: Scenario,
    /// How many nodes there are: 1 to 64
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = nodes)]
    pub(crate) nodes: usize,
    /// What all that is random follows from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Run so many seeds, this one and those after it, and add the figures up: 1 to 100000
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) runs: u64,
    /// Also write a page with the timeline of every node in the run of the first seed; an older file is replaced
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the settings in force, what follows from them, and what this machine lacks
///
/// Exit code 1 if something would keep `run` from working.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Also look at this election
    #[arg(value_parser = election)]
    pub(crate) election: Option<ElectionName>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// This candidate's name [default: $POD_NAME, else host:pid]
    #[arg(long, value_parser = candidate)]
    pub(crate) id: Option<CandidateId>,
    #[command(flatten)]
    pub(crate) term: TermArgs,
    /// Instead: print what an administrator runs in a database whose user may not make tables
    #[arg(long, conflicts_with = "json")]
    pub(crate) print_schema: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// List the backends and what each promises
#[derive(Debug, Args)]
pub(crate) struct BackendsArgs {
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,
    /// Print the table of the README
    #[arg(long)]
    pub(crate) markdown: bool,
}

/// Print a shell's completions
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

/// Print a manual page
///
/// For example: incumbent man run | man -l -
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The page of this command, as run or checkpoint get [default: the overview]
    pub(crate) command: Vec<String>,
}

/// A duration that may be without bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound(pub(crate) Option<Duration>);

// The parser has said which value is wrong; what is left to say is the rule.

fn election(text: &str) -> Result<ElectionName, &'static str> {
    ElectionName::new(text).map_err(|_| ElectionName::RULE)
}

fn candidate(text: &str) -> Result<CandidateId, &'static str> {
    CandidateId::new(text).map_err(|_| CandidateId::RULE)
}

fn address(text: &str) -> Result<String, &'static str> {
    incumbent::check_address(text).map(|()| text.to_owned()).map_err(|_| incumbent::ADDRESS_RULE)
}

fn dialects() -> impl TypedValueParser<Value = Dialect> {
    PossibleValuesParser::new(Dialect::ALL.iter().map(|dialect| dialect.name()))
        .map(|name| name.parse().expect("one of those that are listed"))
}

fn algorithms() -> impl TypedValueParser<Value = Algorithm> {
    let named = |name: &str| Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name);
    PossibleValuesParser::new(Algorithm::ALL.map(Algorithm::name))
        .map(move |name| named(&name).expect("one of those that are listed"))
}

fn scenarios() -> impl TypedValueParser<Value = Scenario> {
    let named = |name: &str| Scenario::ALL.into_iter().find(|scenario| scenario.name() == name);
    PossibleValuesParser::new(Scenario::ALL.map(Scenario::name))
        .map(move |name| named(&name).expect("one of those that are listed"))
}

fn nodes(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=NODES_MAX).contains(count));
    count.ok_or_else(|| format!("write a whole number from 1 to {NODES_MAX}"))
}

fn bound(text: &str) -> Result<Bound, String> {
    if text == "none" { Ok(Bound(None)) } else { duration(text).map(|limit| Bound(Some(limit))) }
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| "no duration; write a number with a unit, as in 1500ms, 15s or 2m".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn durations_and_bounds() {
        assert_eq!(duration("1500ms"), Ok(Duration::from_millis(1500)));
        assert_eq!(bound("none"), Ok(Bound(None)));
        assert_eq!(bound("2m"), Ok(Bound(Some(Duration::from_secs(120)))));
        for text in ["", "5", "-1s", "soon"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
