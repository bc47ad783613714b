//! A run: who takes part, what was measured so far, and how long it will still take.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::contestant::{Contestant, PROGRAMS, installed, listed, own_command};
use crate::machine;
use crate::plan::Plan;
use crate::questions::Question;
use crate::raw::{Measured, Missing, Raw};

/// After how many failures of the same measurement a contestant is not asked for it again.
const STRIKES: usize = 2;

/// One run.
pub struct Bench {
    /// What is measured, and how thoroughly.
    pub plan: Plan,
    /// Who takes part.
    pub contestants: Vec<Contestant>,
    raw: Raw,
    failures: BTreeMap<String, usize>,
    measured: BTreeMap<String, usize>,
    began: Instant,
    /// What the questions that are not begun are expected to take, and the one that is.
    ahead: (Duration, Duration),
}

impl Bench {
    /// Finds who takes part, and begins the raw data.
    ///
    /// # Errors
    ///
    /// If the raw data cannot be written, or tenure itself cannot take part.
    pub fn new(plan: Plan, path: &Path) -> Result<Self, String> {
        let mut contestants = listed("tenure-bench", &own_command())?;
        contestants.retain(Contestant::is_tenure);
        let mut missing = Vec::new();
        for (program, locks) in PROGRAMS {
            let run = installed().join(program).join("run");
            let by_name = plan.peers.as_ref().is_none_or(|peers| peers.iter().any(|peer| peer == program));
            let why = match () {
                () if plan.quick => continue,
                () if run.exists() => match listed(program, &[run]) {
                    Ok(found) => {
                        contestants.extend(found.into_iter().filter(|found| plan.invites(&found.peer, program)));
                        continue;
                    }
                    Err(why) => why,
                },
                () if by_name => format!("not installed: bench/install {program}"),
                () => continue,
            };
            missing.push(Missing::of(&format!("{locks} ({program})"), "", &why));
        }
        let known = |name: &String| {
            name == "none"
                || PROGRAMS.iter().any(|(program, _)| program == name)
                || contestants.iter().any(|contestant| contestant.peer == *name)
        };
        if let Some(unknown) = plan.peers.iter().flatten().find(|name| !known(name)) {
            let peers: Vec<&str> = contestants.iter().map(|contestant| contestant.peer.as_str()).collect();
            return Err(format!("no peer {unknown} is installed (bench/install); there are {}", peers.join(", ")));
        }
        let about = machine::about(&plan.told(), &contestants);
        let raw = Raw::create(path, &about).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut bench = Self {
            plan,
            contestants,
            raw,
            failures: BTreeMap::new(),
            measured: BTreeMap::new(),
            began: Instant::now(),
            ahead: Default::default(),
        };
        missing.iter().try_for_each(|missing| bench.write(missing))?;
        Ok(bench)
    }

    /// Asks all questions of the plan; those that produced no figure of tenure's.
    ///
    /// # Errors
    ///
    /// If the raw data cannot be written.
    pub fn run(&mut self, questions: &[Question]) -> Result<Vec<&'static str>, String> {
        let asked: Vec<&Question> = questions.iter().filter(|question| self.plan.asks(question.name)).collect();
        self.ahead.0 = asked.iter().map(|question| (question.takes)(self)).sum();
        let minutes = self.ahead.0.as_secs_f64() / 60.0;
        eprintln!("{} questions, {} contestants, about {minutes:.0} min:", asked.len(), self.contestants.len());
        for question in &asked {
            let seconds = (question.takes)(self).as_secs_f64();
            eprintln!("  {:<9} {:<76} {seconds:>4.0} s", question.name, question.text);
        }
        for question in &asked {
            let takes = (question.takes)(self);
            self.ahead = (self.ahead.0.saturating_sub(takes), takes);
            if let Err(why) = (question.ask)(self) {
                self.write(&Missing { question: question.name.into(), ..Missing::of("all", "", &why) })?;
            }
        }
        eprintln!("done after {:.1} min", self.began.elapsed().as_secs_f64() / 60.0);
        Ok(asked.iter().map(|question| question.name).filter(|name| !self.measured.contains_key(*name)).collect())
    }

    /// Says on standard error what comes next, and how long the run will still take.
    pub fn progress(&self, question: &str, done: usize, of: usize, what: &str) {
        let (later, now) = self.ahead;
        let left = later.as_secs_f64() + now.as_secs_f64() * (1.0 - done as f64 / of.max(1) as f64);
        let clock = |seconds: f64| format!("{}:{:02}", seconds as u64 / 60, seconds as u64 % 60);
        let spent = clock(self.began.elapsed().as_secs_f64());
        eprintln!("[{spent}, about {} left] {question} {}/{of}: {what}", clock(left), done + 1);
    }

    /// Writes down what came of one measurement.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn note(&mut self, cell: &Cell<'_>, round: usize, outcome: Result<Value, String>) -> Result<(), String> {
        match outcome {
            Ok(result) => {
                if cell.contestant == "tenure" {
                    *self.measured.entry(cell.question.into()).or_default() += 1;
                }
                self.write(&Measured {
                    question: cell.question.into(),
                    contestant: cell.contestant.into(),
                    store: cell.store.into(),
                    params: cell.params.clone(),
                    round,
                    result,
                })
            }
            Err(why) => {
                eprintln!("    {} over {}: {why}", cell.contestant, cell.store);
                *self.failures.entry(cell.key()).or_default() += 1;
                self.write(&Missing {
                    missing: cell.contestant.into(),
                    question: cell.question.into(),
                    store: cell.store.into(),
                    params: cell.params.clone(),
                    round,
                    why,
                })
            }
        }
    }

    /// Writes down who is not asked a question, and why.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn leave_out(&mut self, question: &str, contestant: &Contestant, why: &str) -> Result<(), String> {
        self.write(&Missing { question: question.into(), ..Missing::of(&contestant.peer, &contestant.store, why) })
    }

    /// Whether this has failed so often that it is not tried again.
    pub fn is_out(&self, cell: &Cell<'_>) -> bool {
        self.failures.get(&cell.key()).is_some_and(|failures| *failures >= STRIKES)
    }

    /// Asks every contestant once in every round, in an order that begins with another one in each; what comes of it
    /// is written down. Beside parameters stands how many rounds there are of them.
    ///
    /// # Errors
    ///
    /// If it cannot be written down.
    pub fn rounds(
        &mut self,
        question: &'static str,
        params: &[(Value, usize)],
        contestants: impl Fn(&Value, usize) -> Vec<Contestant>,
        mut ask: impl FnMut(&Contestant, &Value, usize) -> Result<Value, String>,
    ) -> Result<(), String> {
        let cells = |(params, rounds): &(Value, usize)| {
            (1..=*rounds).map(|round| contestants(params, round).len()).sum::<usize>()
        };
        let of = params.iter().map(cells).sum::<usize>();
        let mut done = 0;
        for round in 1..=params.iter().map(|(_, rounds)| *rounds).max().unwrap_or(0) {
            for (params, _) in params.iter().filter(|(_, rounds)| round <= *rounds) {
                let mut order = contestants(params, round);
                if !order.is_empty() {
                    let first = (round - 1) % order.len();
                    order.rotate_left(first);
                }
                for contestant in &order {
                    let Contestant { peer, store, .. } = contestant;
                    let cell = Cell { question, contestant: peer, store, params };
                    let what = format!("{peer} over {store}, {}, round {round}", words(params));
                    self.progress(question, done, of, &what);
                    done += 1;
                    let outcome = if self.is_out(&cell) {
                        Err(format!("failed {STRIKES} times before: not asked again"))
                    } else {
                        ask(contestant, params, round)
                    };
                    self.note(&cell, round, outcome)?;
                }
            }
        }
        Ok(())
    }

    /// Those over a store.
    pub fn over(&self, store: &str) -> Vec<Contestant> {
        let measured = self.contestants.iter().filter(|_| self.plan.measures(store));
        measured.filter(|contestant| contestant.store == store).cloned().collect()
    }

    /// tenure over a store.
    pub fn tenure_over(&self, store: &str) -> Vec<Contestant> {
        self.over(store).into_iter().filter(Contestant::is_tenure).collect()
    }

    fn write(&mut self, line: &impl serde::Serialize) -> Result<(), String> {
        let path = self.raw.path.display().to_string();
        self.raw.line(line).map_err(|error| format!("{path}: {error}"))
    }
}

/// What is measured: who, over which store, with what.
#[derive(Clone, Copy, Debug)]
pub struct Cell<'a> {
    /// For which question.
    pub question: &'a str,
    /// Who.
    pub contestant: &'a str,
    /// Over which store.
    pub store: &'a str,
    /// With what.
    pub params: &'a Value,
}

impl Cell<'_> {
    fn key(&self) -> String {
        format!("{} {} {} {}", self.question, self.contestant, self.store, self.params)
    }
}

impl Missing {
    fn of(who: &str, store: &str, why: &str) -> Self {
        Self {
            missing: who.into(),
            question: String::new(),
            store: store.into(),
            params: Value::Null,
            round: 0,
            why: why.into(),
        }
    }
}

/// Parameters as words: `256 tasks`.
fn words(params: &Value) -> String {
    let pairs = params.as_object().into_iter().flatten();
    let words: Vec<String> = pairs
        .map(|(key, value)| match value.as_str() {
            Some(text) => text.to_owned(),
            None => format!("{value} {key}"),
        })
        .collect();
    words.join(", ")
}
