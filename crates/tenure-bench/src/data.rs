//! Raw data that was read back, and the figures in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::raw::{Measured, Missing};
use crate::stats::Figure;

/// All lines of a run.
#[derive(Clone, Debug, Default)]
pub struct Data {
    /// The files they are from, each with the questions it was read for; none if for all.
    pub sources: Vec<(String, Vec<String>)>,
    /// The machine, the versions, the date.
    pub run: Value,
    /// What was measured.
    pub measured: Vec<Measured>,
    /// What was not.
    pub missing: Vec<Missing>,
}

/// Whose figures, and which: the measurements that agree with all of it.
#[derive(Clone, Copy, Debug)]
pub struct Pick<'a> {
    /// Of which question.
    pub question: &'a str,
    /// Over which store.
    pub store: &'a str,
    /// With what: each must be so.
    pub params: &'a [(&'a str, f64)],
    /// Which part of the question, where it has several.
    pub part: &'a str,
}

impl Data {
    /// Reads a file; a last line that was cut off by the end of a run is left out.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or has no line about the run.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut data = Self::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        data.sources.push((name, Vec::new()));
        Ok(data)
    }

    /// Takes what a later run has asked again, a question over a store, from that run.
    pub fn replace(&mut self, later: Self) {
        let asked: BTreeSet<(String, String)> =
            later.measured.iter().map(|line| (line.question.clone(), line.store.clone())).collect();
        let again = |question: &str, store: &str| asked.contains(&(question.to_owned(), store.to_owned()));
        // What was not asked for at all says nothing of a question, and holds until it is.
        let stores: BTreeSet<&str> = asked.iter().map(|(_, store)| store.as_str()).collect();
        let told_again = |line: &Missing| {
            if line.question.is_empty() {
                stores.contains(line.store.as_str())
            } else {
                again(&line.question, &line.store)
            }
        };
        self.measured.retain(|line| !again(&line.question, &line.store));
        self.missing.retain(|line| !told_again(line));
        self.measured.extend(later.measured);
        self.missing.extend(later.missing.into_iter().filter(told_again));
        let asked: Vec<String> = asked.iter().map(|(question, store)| format!("{question} over {store}")).collect();
        self.sources.extend(later.sources.into_iter().map(|(name, _)| (name, asked.clone())));
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// If it has no line about the run.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut values = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let run =
            values.next().filter(|run| run.get("machine").is_some()).ok_or("the first line is not about a run")?;
        let mut data = Self { run, ..Self::default() };
        for value in values {
            if value.get("missing").is_some() {
                data.missing.extend(serde_json::from_value::<Missing>(value).ok());
            } else {
                data.measured.extend(serde_json::from_value::<Measured>(value).ok());
            }
        }
        Ok(data)
    }

    fn picked<'a>(&'a self, pick: &'a Pick<'a>) -> impl Iterator<Item = &'a Measured> {
        self.measured.iter().filter(|line| {
            line.question == pick.question
                && line.store == pick.store
                && line.params["part"].as_str().unwrap_or("") == pick.part
                && pick.params.iter().all(|(key, value)| line.params[*key].as_f64() == Some(*value))
        })
    }

    /// The rounds of one contestant in one field of its results; a field within a field is named with a dot.
    pub fn rounds(&self, pick: &Pick<'_>, contestant: &str, field: &str) -> BTreeMap<usize, f64> {
        let own = self.picked(pick).filter(|line| line.contestant == contestant);
        own.filter_map(|line| Some((line.round, field_of(&line.result, field)?))).collect()
    }

    /// The figure of one contestant in one field of its results.
    pub fn figure(&self, pick: &Pick<'_>, contestant: &str, field: &str) -> Option<Figure> {
        let rounds: Vec<f64> = self.rounds(pick, contestant, field).into_values().collect();
        Figure::of(&rounds)
    }

    /// One contestant against another, round by round.
    pub fn ratio(&self, pick: &Pick<'_>, (one, other): (&str, &str), field: &str) -> Option<Figure> {
        let (ours, theirs) = (self.rounds(pick, one, field), self.rounds(pick, other, field));
        Figure::of(&ratios(&ours, &theirs))
    }

    /// Those who were measured, tenure first.
    pub fn contestants(&self, pick: &Pick<'_>) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for line in self.picked(pick) {
            if !names.contains(&line.contestant) {
                names.push(line.contestant.clone());
            }
        }
        names.sort_by_key(|name| (!name.starts_with("tenure"), name.clone()));
        names
    }

    /// The values of a parameter that were measured, in order.
    pub fn values(&self, pick: &Pick<'_>, param: &str) -> Vec<f64> {
        let mut values: Vec<f64> = self.picked(pick).filter_map(|line| line.params[param].as_f64()).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        values
    }
}

/// Round by round, one through the other.
pub fn ratios(ours: &BTreeMap<usize, f64>, theirs: &BTreeMap<usize, f64>) -> Vec<f64> {
    let both = ours.iter().filter_map(|(round, own)| Some(own / theirs.get(round)?));
    both.filter(|ratio| ratio.is_finite()).collect()
}

fn field_of(result: &Value, field: &str) -> Option<f64> {
    let value = field.split('.').try_fold(result, |value, part| value.get(part));
    value?.as_f64().filter(|number| number.is_finite())
}
