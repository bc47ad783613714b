//! What a look at a store found: plain facts, and what makes locks unsafe or slow there.

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use crate::backend::Guarantees;

/// How much a [`Finding`] matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Severity {
    /// Locks can be lost, or refused, as it is.
    Problem,
    /// It works; it could be safer or quicker.
    Advice,
}

/// One thing to change about a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What was found.
    pub what: String,
    /// Why it matters for locks.
    pub why: String,
    /// What to do about it, in words.
    pub fix: String,
    /// The commands that do it, or show more, one after another; empty where none does.
    pub fix_commands: Vec<String>,
}

/// What to do about a finding: words, and commands that can be pasted into a shell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fix {
    words: String,
    commands: Vec<String>,
}

impl Fix {
    /// Adds a command.
    #[must_use]
    pub fn run(mut self, command: impl Into<String>) -> Self {
        self.commands.push(command.into());
        self
    }

    /// Adds all commands of another.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.commands.extend(other.commands);
        self
    }

    /// Says something else.
    #[must_use]
    pub fn saying(mut self, words: impl Into<String>) -> Self {
        self.words = words.into();
        self
    }
}

impl<T: Into<String>> From<T> for Fix {
    fn from(words: T) -> Self {
        Self { words: words.into(), commands: Vec::new() }
    }
}

/// The state of a store, as one who keeps locks in it sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Checkup {
    /// What was seen, in the order it was looked at. An object in JSON.
    #[serde(serialize_with = "as_object")]
    pub facts: Vec<(String, String)>,
    /// What to change.
    pub findings: Vec<Finding>,
}

impl Checkup {
    /// What is so in every store with these guarantees.
    pub(crate) fn of(guarantees: &Guarantees) -> Self {
        let mut checkup = Self::default();
        checkup.fact("locks expire by", guarantees.time);
        checkup.fact("tokens grow", guarantees.tokens);
        checkup
    }

    /// Adds a fact.
    pub fn fact(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.facts.push((name.into(), value.into()));
    }

    /// Adds what makes locks unsafe.
    pub fn problem(&mut self, what: impl Into<String>, why: impl Into<String>, fix: impl Into<Fix>) {
        self.find(Severity::Problem, what.into(), why.into(), fix.into());
    }

    /// Adds what could be better.
    pub fn advice(&mut self, what: impl Into<String>, why: impl Into<String>, fix: impl Into<Fix>) {
        self.find(Severity::Advice, what.into(), why.into(), fix.into());
    }

    /// Adds everything another look found.
    pub fn add(&mut self, other: Self) {
        self.facts.extend(other.facts);
        self.findings.extend(other.findings);
    }

    fn find(&mut self, severity: Severity, what: String, why: String, fix: Fix) {
        self.findings.push(Finding { severity, what, why, fix: fix.words, fix_commands: fix.commands });
    }
}

/// A word as a shell reads it.
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:=@%+,-".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn as_object<S: Serializer>(facts: &[(String, String)], serializer: S) -> Result<S::Ok, S::Error> {
    let mut object = serializer.serialize_map(Some(facts.len()))?;
    for (name, value) in facts {
        object.serialize_entry(name, value)?;
    }
    object.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_an_object_and_findings_an_array() {
        let mut checkup = Checkup::default();
        checkup.fact("version", "7.0");
        checkup.problem("it evicts", "locks vanish", Fix::from("stop it").run("stop").run("rest"));
        let json = serde_json::to_string(&checkup).unwrap();
        assert_eq!(
            json,
            r#"{"facts":{"version":"7.0"},"findings":[{"severity":"problem","what":"it evicts","why":"locks vanish","fix":"stop it","fix_commands":["stop","rest"]}]}"#
        );
    }
}
