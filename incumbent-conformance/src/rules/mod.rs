//! The rules: one file each.

mod h;
mod handover;
mod notes;
mod r1;
mod r10;
mod r11;
mod r2;
mod r3;
mod r4;
mod r5;
mod r6;
mod r7;
mod r8;
mod r9;

use crate::suite::Case;

/// A rule and its cases.
pub(crate) struct Rule {
    /// As in `R4`.
    pub(crate) id: &'static str,
    pub(crate) cases: &'static [Case],
}

/// All rules, in order.
pub(crate) const ALL: &[Rule] = &[
    r1::RULE,
    r2::RULE,
    r3::RULE,
    r4::RULE,
    r5::RULE,
    r6::RULE,
    r7::RULE,
    r8::RULE,
    r9::RULE,
    r10::RULE,
    r11::RULE,
    handover::RULE,
    notes::RULE,
    h::RULE,
];

/// A row of a rule's table: the case is called as its function is.
macro_rules! case {
    ($name:ident) => {
        $crate::suite::Case { name: stringify!($name), alone: false, run: |stage| Box::pin($name(stage)) }
    };
    ($name:ident, alone) => {
        $crate::suite::Case { name: stringify!($name), alone: true, run: |stage| Box::pin($name(stage)) }
    };
}
use case;

#[cfg(test)]
mod tests {
    #[test]
    fn every_case_is_called_after_its_rule_and_no_two_alike() {
        let mut names = std::collections::BTreeSet::new();
        for rule in super::ALL {
            for case in rule.cases {
                assert!(case.name.starts_with(&format!("{}_", rule.id.to_lowercase())), "{}", case.name);
                assert!(names.insert(case.name), "{} is there twice", case.name);
            }
        }
    }
}
