//! What the library logs: warnings are told like our own, the rest with `-vv`. They go the same way, so that a stderr that
//! nobody reads cannot block the elector's thread.

use std::fmt::{Debug, Write};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::report::{Report, Reporter};

/// Listens from now on.
pub(crate) fn listen(reporter: Reporter, all: bool) {
    let max = if all { Level::DEBUG } else { Level::WARN };
    // A second listener can only be refused, and there is no first.
    let _ = tracing::subscriber::set_global_default(Listener { reporter, max });
}

struct Listener {
    reporter: Reporter,
    max: Level,
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("incumbent") && *metadata.level() <= self.max
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let message = line.message + &line.fields;
        if *event.metadata().level() <= Level::WARN {
            self.reporter.warn(&message);
        } else {
            self.reporter.tell(&Report::Log { message: &message });
        }
    }

    // Spans are not listened to.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// `message; name value, name value`.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string cannot fail.
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            let comma = if self.fields.is_empty() { ";" } else { "," };
            let _ = write!(self.fields, "{comma} {} {value:?}", field.name());
        }
    }
}
