//! Numbers and names as people read them.

use std::borrow::Cow;
use std::error::Error as _;
use std::time::Duration;

use incumbent::{Error, ErrorKind, Leader};

/// A span of time in at most two units: `250 ms`, `1.5 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`.
pub(crate) fn span(span: Duration) -> String {
    let millis = span.as_millis();
    let seconds = (millis + 500) / 1000;
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..9_950 if millis % 1000 >= 50 => format!("{:.1} s", millis as f64 / 1000.0),
        1_000..59_500 => format!("{seconds} s"),
        _ => {
            let (big, small, unit, part) = match seconds {
                0..3_600 => (seconds / 60, seconds % 60, "min", "s"),
                3_600..86_400 => (seconds / 3_600, seconds % 3_600 / 60, "h", "min"),
                _ => (seconds / 86_400, seconds % 86_400 / 3_600, "d", "h"),
            };
            if small == 0 { format!("{big} {unit}") } else { format!("{big} {unit} {small} {part}") }
        }
    }
}

/// The longest that something takes: as [`span`], but never less than it is.
pub(crate) fn bound(longest: Duration) -> String {
    let millis = longest.as_nanos().div_ceil(1_000_000) as u64;
    let grain = match millis {
        0..1_000 => 1,
        1_000..10_000 => 100,
        10_000..3_600_000 => 1_000,
        3_600_000..86_400_000 => 60_000,
        _ => 3_600_000,
    };
    span(Duration::from_millis(millis.next_multiple_of(grain)))
}

/// The text with its control characters written out: what anyone can put into a store breaks no line and drives no terminal.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return text.into();
    }
    let written = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(written).collect::<String>().into()
}

/// A leader with its token: `web-2:4711 (token 17)`.
pub(crate) fn leader(leader: &Leader) -> String {
    let id = visible(&leader.contender.id);
    match (leader.token, leader.contender.is_foreign()) {
        (Some(token), false) => format!("{id} (token {token})"),
        (Some(token), true) => format!("{id} (a client of another kind, token {token})"),
        (None, false) => id.into_owned(),
        (None, true) => format!("{id} (a client of another kind)"),
    }
}

/// How long it has led, by the wall clocks of both; `None` if they contradict each other or it is not known.
pub(crate) fn age(leader: &Leader) -> Option<Duration> {
    let since = leader.since_unix_ms?;
    crate::clock::unix_ms().checked_sub(since).map(Duration::from_millis)
}

/// ` for 12 s`, or nothing if it has only just begun or is not known.
pub(crate) fn for_how_long(leader: &Leader) -> String {
    let age = age(leader).filter(|age| *age >= Duration::from_secs(1));
    age.map(|age| format!(" for {}", span(age))).unwrap_or_default()
}

/// What a transport says above the cause.
const SAYING_NOTHING: [&str; 1] = ["transport error"];

/// What TLS says before a cause that the advice has named.
const ABOVE_THE_CAUSE: &str = "invalid peer certificate: ";

/// An error with all that caused it, each cause once.
pub(crate) fn error(error: &Error) -> String {
    let mut text = error.to_string();
    // As `etcd at 10.0.0.1:2379`, which need not be told again with a cause.
    let place = text.split_once(": ").map(|(place, _)| format!("{place}: ")).unwrap_or_default();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        let cause_text = cause_text.strip_prefix(&place).unwrap_or(&cause_text);
        let bare = cause_text.strip_prefix(ABOVE_THE_CAUSE).unwrap_or(cause_text);
        // One that only wraps what was told, as "Input/output error: connection refused".
        let wraps = std::iter::successors(cause.source(), |deeper| (**deeper).source())
            .map(ToString::to_string)
            .any(|deeper| cause_text.contains(&deeper) && text.contains(&deeper));
        if !wraps && !text.contains(bare) && !SAYING_NOTHING.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// `timed_out` for [`ErrorKind::TimedOut`].
pub(crate) fn kind(kind: ErrorKind) -> String {
    let mut text = String::new();
    for letter in format!("{kind:?}").chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

/// `SIGTERM` for 15.
pub(crate) fn signal(number: i32) -> String {
    const NAMES: [(i32, &str); 17] = {
        use signal_hook::consts::signal::*;
        [
            (SIGHUP, "SIGHUP"),
            (SIGINT, "SIGINT"),
            (SIGQUIT, "SIGQUIT"),
            (SIGILL, "SIGILL"),
            (SIGTRAP, "SIGTRAP"),
            (SIGABRT, "SIGABRT"),
            (SIGBUS, "SIGBUS"),
            (SIGFPE, "SIGFPE"),
            (SIGKILL, "SIGKILL"),
            (SIGUSR1, "SIGUSR1"),
            (SIGSEGV, "SIGSEGV"),
            (SIGUSR2, "SIGUSR2"),
            (SIGPIPE, "SIGPIPE"),
            (SIGALRM, "SIGALRM"),
            (SIGTERM, "SIGTERM"),
            (SIGXCPU, "SIGXCPU"),
            (SIGSYS, "SIGSYS"),
        ]
    };
    let name = NAMES.iter().find(|(known, _)| *known == number);
    name.map_or_else(|| format!("signal {number}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_was_named_is_not_told_again() {
        let told = |source: &'static str| {
            let text = "its certificate is not accepted (UnknownIssuer); check ca=";
            super::error(&Error::new(ErrorKind::Denied, text).with_source(source))
        };
        assert_eq!(told("invalid peer certificate: UnknownIssuer"), told("UnknownIssuer"));
        assert!(told("invalid peer certificate: UnknownIssuer").ends_with("check ca="));
        assert!(told("connection reset").ends_with("check ca=: connection reset"));
    }

    #[test]
    fn where_it_failed_is_told_once() {
        let cause = Error::new(ErrorKind::Unavailable, "etcd at h:1: cannot connect: reset");
        let failure = Error::new(ErrorKind::Denied, "etcd at h:1: use tls=off").with_source(cause);
        assert_eq!(super::error(&failure), "etcd at h:1: use tls=off: cannot connect: reset");
    }

    #[test]
    fn a_cause_that_wraps_what_was_named_is_not_told() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let text = format!("cannot connect: {refused}");
        let wrapped = std::io::Error::other(
            Error::new(ErrorKind::Internal, format!("I/O: {refused}")).with_source(refused),
        );
        assert_eq!(super::error(&Error::new(ErrorKind::Unavailable, &*text).with_source(wrapped)), text);
    }

    #[test]
    fn kinds_are_words_for_programs() {
        assert_eq!(kind(ErrorKind::TimedOut), "timed_out");
        assert_eq!(kind(ErrorKind::Denied), "denied");
    }

    #[test]
    fn what_others_wrote_stays_on_its_line() {
        assert_eq!(visible("web-2:4711 é"), "web-2:4711 é");
        assert_eq!(visible("a\u{1b}[31m\nb"), "a\\u{1b}[31m\\nb");
    }

    #[test]
    fn spans_read_like_spans() {
        let cases = [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_000, "1 s"),
            (1_049, "1 s"),
            (1_500, "1.5 s"),
            (9_949, "9.9 s"),
            (9_960, "10 s"),
            (12_400, "12 s"),
            (59_499, "59 s"),
            (59_500, "1 min"),
            (200_000, "3 min 20 s"),
            (3_600_000, "1 h"),
            (7_500_000, "2 h 5 min"),
            (356_400_000, "4 d 3 h"),
        ];
        for (millis, text) in cases {
            assert_eq!(span(Duration::from_millis(millis)), text, "{millis} ms");
        }
    }

    #[test]
    fn a_bound_is_rounded_up() {
        let cases = [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_001, "1.1 s"),
            (1_100, "1.1 s"),
            (9_901, "10 s"),
            (18_265, "19 s"),
            (18_000, "18 s"),
            (59_001, "1 min"),
            (61_001, "1 min 2 s"),
            (3_600_001, "1 h 1 min"),
            (86_400_001, "1 d 1 h"),
        ];
        for (millis, text) in cases {
            assert_eq!(bound(Duration::from_millis(millis)), text, "{millis} ms");
        }
        assert_eq!(bound(Duration::from_nanos(1)), "1 ms");
    }
}
