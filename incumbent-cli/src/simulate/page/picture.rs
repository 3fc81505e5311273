//! The timeline of every node, as SVG.

use std::fmt::Write;

use incumbent_sim::outcome::{Illness, Letter};
use incumbent_sim::report::{Algorithm, Report, Span, node_name};

use super::escape;
use super::window::Window;
use crate::simulate::table::{lasted, title};

/// So many colours of leaders there are.
const COLOURS: usize = 6;
/// All is measured in these; the picture is as wide as its place.
const WIDTH: f64 = 1_000.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 24.0;
const AXIS: f64 = 26.0;

pub(super) struct Picture<'a> {
    report: &'a Report,
    span: Span,
    row: f64,
    /// With messages and words.
    near: bool,
}

/// How a message is drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    Upkeep,
    Election,
    None,
}

impl<'a> Picture<'a> {
    /// A short time, with its messages.
    pub(super) fn near(report: &'a Report, window: &Window) -> Picture<'a> {
        let row = match report.setup.nodes {
            0..=10 => 34.0,
            11..=24 => 22.0,
            _ => 14.0,
        };
        Picture { report, span: window.span, row, near: true }
    }

    /// All of it.
    pub(super) fn whole(report: &'a Report) -> Picture<'a> {
        let row = if report.setup.nodes <= 10 { 15.0 } else { 9.0 };
        Picture { report, span: Span { from_ms: 0.0, until_ms: report.duration_ms }, row, near: false }
    }

    fn has_store(&self) -> bool {
        self.report.setup.algorithm == Algorithm::Lease
    }

    fn rows(&self) -> usize {
        self.report.setup.nodes + usize::from(self.has_store() && self.near)
    }

    fn x(&self, at_ms: f64) -> f64 {
        let at = at_ms.clamp(self.span.from_ms, self.span.until_ms);
        LEFT + (at - self.span.from_ms) / self.span.length_ms() * (WIDTH - LEFT - RIGHT)
    }

    fn top_of(&self, node: usize) -> f64 {
        TOP + node as f64 * self.row
    }

    fn middle_of(&self, node: usize) -> f64 {
        self.top_of(node) + self.row / 2.0
    }

    fn bottom(&self) -> f64 {
        self.top_of(self.rows())
    }

    /// Whether some of it is in the picture.
    fn shows(&self, span: &Span) -> bool {
        span.from_ms < self.span.until_ms && span.until_ms > self.span.from_ms
    }

    /// The colour of a leader: the first that led has the first.
    fn colour(&self, node: usize) -> usize {
        let mut seen: Vec<usize> = Vec::new();
        for leadership in &self.report.timeline.leaderships {
            if !seen.contains(&leadership.node) {
                seen.push(leadership.node);
            }
        }
        seen.iter().position(|leader| *leader == node).unwrap_or(0) % COLOURS
    }

    /// A figure with the picture and what it shows in words. The name tells its elements from other pictures'.
    pub(super) fn draw(&self, name: &str) -> String {
        let height = self.bottom() + AXIS;
        let algorithm = escape(&title(self.report));
        let what = match self.near {
            true => {
                format!("{algorithm}, from {} to {}", lasted(self.span.from_ms), lasted(self.span.until_ms))
            }
            false => format!("{algorithm}, the whole run of {}", lasted(self.span.length_ms())),
        };
        let mut svg = String::new();
        self.draw_troubles(&mut svg);
        if self.near {
            self.draw_letters(&mut svg);
        }
        self.draw_overlaps(&mut svg, "overlap");
        self.draw_views(&mut svg);
        self.draw_leaderships(&mut svg);
        self.draw_overlaps(&mut svg, "overlap-edge");
        self.draw_alarms(&mut svg);
        self.draw_frame(&mut svg);
        format!(
            "<figure>\n<figcaption>{what}</figcaption>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{what}\">\n\
             <svg class=\"timeline\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"{name}-t {name}-d\">\n\
             <title id=\"{name}-t\">{what}</title>\n<desc id=\"{name}-d\">{}</desc>\n{svg}</svg>\n</div>\n</figure>\n",
            escape(&self.in_words()),
        )
    }

    /// Who led when, for those who do not see it.
    fn in_words(&self) -> String {
        let mut words = String::new();
        let shown = self.report.timeline.leaderships.iter().filter(|leadership| self.shows(&leadership.span));
        for leadership in shown {
            let Span { from_ms, until_ms } = leadership.span;
            let _ = write!(
                words,
                "{} leads from {:.1} s to {:.1} s. ",
                node_name(leadership.node),
                from_ms / 1_000.0,
                until_ms / 1_000.0
            );
        }
        for overlap in self.report.timeline.overlaps.iter().filter(|overlap| self.shows(overlap)) {
            let _ = write!(
                words,
                "Two lead at once from {:.1} s on, for {}. ",
                overlap.from_ms / 1_000.0,
                lasted(overlap.length_ms())
            );
        }
        words.trim_end().to_owned()
    }

    fn rect(&self, svg: &mut String, class: &str, span: &Span, top: f64, height: f64) -> (f64, f64) {
        let (from, until) = (self.x(span.from_ms), self.x(span.until_ms));
        let width = (until - from).max(0.6);
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
        );
        (from, width)
    }

    fn text(&self, svg: &mut String, class: &str, x: f64, y: f64, text: &str) {
        let _ = writeln!(svg, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(text));
    }

    /// Words in a bar, if they fit.
    fn label(&self, svg: &mut String, class: &str, (x, width): (f64, f64), y: f64, choices: &[&str]) {
        if !self.near || self.row < 20.0 {
            return;
        }
        let fits = choices.iter().find(|text| text.chars().count() as f64 * 6.4 + 10.0 < width);
        if let Some(text) = fits {
            self.text(svg, class, x + 5.0, y + 4.0, text);
        }
    }

    fn draw_troubles(&self, svg: &mut String) {
        for trouble in self.report.timeline.troubles.iter().filter(|trouble| self.shows(&trouble.span)) {
            let (class, words) = match trouble.what {
                Illness::Down => ("down", "down"),
                Illness::Frozen => ("frozen", "stands still"),
                Illness::CutOff | Illness::Minority => ("cut", "cut off"),
            };
            let place = self.rect(svg, class, &trouble.span, self.top_of(trouble.node), self.row);
            if trouble.what != Illness::Minority {
                self.label(svg, "aside", place, self.middle_of(trouble.node), &[words]);
            }
        }
    }

    fn draw_views(&self, svg: &mut String) {
        let views = &self.report.timeline.views;
        for node in 0..self.report.setup.nodes {
            let own: Vec<_> = views.iter().filter(|view| view.node == node).collect();
            for (number, view) in own.iter().enumerate() {
                let until =
                    own.get(number + 1).map_or(self.report.duration_ms, |next| next.from_ns as f64 / 1e6);
                let span = Span { from_ms: view.from_ns as f64 / 1e6, until_ms: until };
                let Some(leader) = view.leader.filter(|leader| *leader != node && self.shows(&span)) else {
                    continue;
                };
                let class = format!("follows k{}", self.colour(leader));
                let height = self.row * 0.44;
                let place = self.rect(svg, &class, &span, self.middle_of(node) - height / 2.0, height);
                let name = node_name(leader);
                self.label(svg, "aside", place, self.middle_of(node), &[&format!("follows {name}"), &name]);
            }
        }
    }

    fn draw_leaderships(&self, svg: &mut String) {
        let height = self.row * 0.66;
        for leadership in self.report.timeline.leaderships.iter().filter(|leads| self.shows(&leads.span)) {
            let class = format!("leads k{}", self.colour(leadership.node));
            let middle = self.middle_of(leadership.node);
            let place = self.rect(svg, &class, &leadership.span, middle - height / 2.0, height);
            let term = match leadership.token {
                Some(token) => format!("leads, token {token}"),
                None => format!("leads, epoch {}, no token", leadership.term),
            };
            self.label(svg, "inside", place, middle, &[&term, "leads"]);
        }
    }

    fn overlaps(&self) -> impl Iterator<Item = &Span> {
        self.report.timeline.overlaps.iter().filter(|overlap| self.shows(overlap))
    }

    /// The ground lies behind the bars, the edge before them.
    fn draw_overlaps(&self, svg: &mut String, class: &str) {
        let bottom = self.top_of(self.report.setup.nodes);
        for overlap in self.overlaps() {
            self.rect(svg, class, overlap, TOP - 3.0, bottom - TOP + 6.0);
        }
    }

    /// How long two lead; of overlaps close to each other only the first is told.
    fn draw_alarms(&self, svg: &mut String) {
        let mut free_from = 0.0;
        for overlap in self.overlaps().filter(|_| self.near) {
            let middle = (self.x(overlap.from_ms) + self.x(overlap.until_ms)) / 2.0;
            let x = middle.clamp(LEFT + 60.0, WIDTH - RIGHT - 60.0);
            if x - 65.0 >= free_from {
                let words = format!("two lead: {}", lasted(overlap.length_ms()));
                self.text(svg, "alarm", x, TOP - 9.0, &words);
                free_from = x + 65.0;
            }
        }
    }

    fn draw_frame(&self, svg: &mut String) {
        for node in 0..self.rows() {
            let name = if node < self.report.setup.nodes { node_name(node) } else { "the store".to_owned() };
            if self.row >= 12.0 || node % 4 == 0 {
                self.text(svg, "name", LEFT - 8.0, self.middle_of(node) + 4.0, &name);
            }
        }
        let bottom = self.bottom();
        let mut lines = format!("M{LEFT} {bottom:.1} H{}", WIDTH - RIGHT);
        let steps = [100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0, 20_000.0];
        let step = steps.into_iter().find(|step| self.span.length_ms() / step <= 12.0).unwrap_or(50_000.0);
        let mut at = (self.span.from_ms / step).ceil() * step;
        while at <= self.span.until_ms {
            let x = self.x(at);
            let _ = write!(lines, "M{x:.1} {bottom:.1} v5");
            self.text(svg, "tick", x, bottom + 18.0, &format!("{} s", at / 1_000.0));
            at += step;
        }
        let _ = writeln!(svg, "<path class=\"axis\" d=\"{lines}\"/>");
    }

    // ---- messages ----

    fn line(&self, kind: &str) -> Line {
        match kind {
            "heartbeat" | "renew" => Line::Upkeep,
            "heartbeat answer" | "received" => Line::None,
            "answer" | "hint" if self.has_store() => Line::None,
            _ => Line::Election,
        }
    }

    fn draw_letters(&self, svg: &mut String) {
        let mut paths = [(Line::Upkeep, String::new()), (Line::Election, String::new())];
        let mut lost = String::new();
        let in_span = |letter: &&Letter| self.span.contains(letter.sent_ns as f64 / 1e6);
        for letter in self.report.timeline.letters.iter().filter(in_span) {
            let line = self.line(letter.kind);
            let Some((_, path)) = paths.iter_mut().find(|(of, _)| *of == line) else { continue };
            let (x, y) = (self.x(letter.sent_ns as f64 / 1e6), self.middle_of(letter.from));
            let to = self.middle_of(letter.to);
            match letter.arrived_ns {
                Some(arrived) => {
                    let _ = write!(path, "M{x:.1} {y:.1}L{:.1} {to:.1}", self.x(arrived as f64 / 1e6));
                }
                None => {
                    let end = y + (to - y).signum() * self.row * 0.62;
                    let _ =
                        write!(lost, "M{x:.1} {y:.1}V{end:.1}M{:.1} {:.1}l4 4m0-4l-4 4", x - 2.0, end - 2.0);
                }
            }
        }
        for (line, path) in paths {
            let class = if line == Line::Upkeep { "upkeep" } else { "election" };
            let _ = writeln!(svg, "<path class=\"{class}\" d=\"{path}\"/>");
        }
        let _ = writeln!(svg, "<path class=\"lost\" d=\"{lost}\"/>");
    }
}
