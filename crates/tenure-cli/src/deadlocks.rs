//! `deadlocks`: owners that wait for each other.

use std::collections::HashSet;

use serde::Serialize;
use tenure::deadlocks::{Deadlock, Wait};
use tenure::{ClaimId, Name, Tenure};

use crate::args::Deadlocks;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::plain::plain;
use crate::show::time;
use crate::store::Store;
use crate::{label, output};

/// How often it is looked again for what is left when some were broken.
const ROUNDS_MAX: usize = 16;

/// A deadlock, for programs.
#[derive(Serialize)]
struct Told {
    #[serde(flatten)]
    deadlock: Deadlock,
    /// The wait that came last.
    victim: Option<usize>,
    /// Whether that one was ended.
    broken: bool,
}

impl Told {
    fn new(deadlock: Deadlock, broken: bool) -> Self {
        let victim = deadlock.waits.iter().position(|wait| Some(wait) == deadlock.youngest());
        Self { deadlock, victim, broken }
    }

    /// For people.
    fn text(&self) -> String {
        let waits = &self.deadlock.waits;
        let mut text = match waits.len() {
            1 => "deadlock: one waits for itself\n".to_owned(),
            count => format!("deadlock of {count}\n"),
        };
        for (place, wait) in waits.iter().enumerate() {
            let last = if Some(place) != self.victim {
                ""
            } else if self.broken {
                "; ended"
            } else {
                "; came last"
            };
            text.push_str(&format!("  {}{last}\n", line(wait)));
        }
        if waits.iter().any(|wait| wait.within.is_none()) {
            text.push_str("  unless another task of these sessions works on\n");
        }
        text
    }
}

fn line(wait: &Wait) -> String {
    let waited = wait.waited.map(|waited| format!(", waiting for {}", time(Some(waited)))).unwrap_or_default();
    format!("{}{waited}", plain(&wait.to_string()))
}

pub(crate) async fn run(args: &Deadlocks, store: Store, json: bool) -> Result<Exit, Failure> {
    let find = async |tenure: &Tenure| {
        if args.break_ {
            return break_all(tenure, &store).await;
        }
        let found = store.ask(tenure.deadlocks()).await?;
        Ok(found.into_iter().map(|deadlock| Told::new(deadlock, false)).collect())
    };
    let found: Vec<Told> = store.with(&label::of_person(), json, find).await?;
    if json {
        output::print_json(&found)?;
    } else {
        output::print(found.iter().map(Told::text).collect::<Vec<_>>().join("\n").as_bytes())?;
        if found.is_empty() {
            crate::failure::say("no deadlocks");
        } else if !args.break_ {
            crate::failure::say("`tenure deadlocks --break` ends the wait that came last of each");
        }
    }
    Ok(if found.is_empty() { Exit::Done } else { Exit::Nothing })
}

/// Breaks what is found, and looks again: a claim may be in several.
async fn break_all(tenure: &Tenure, store: &Store) -> Result<Vec<Told>, Failure> {
    let mut told: Vec<Told> = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let found = store.ask(tenure.deadlocks()).await?;
        if found.is_empty() {
            break;
        }
        let mut ended: HashSet<(Name, ClaimId)> = HashSet::new();
        for deadlock in found {
            // Broken with another one.
            if deadlock.waits.iter().any(|wait| ended.contains(&(wait.name.clone(), wait.claim))) {
                continue;
            }
            let broken = store.ask(tenure.break_deadlock(&deadlock)).await?;
            if let Some(victim) = deadlock.youngest().filter(|_| broken) {
                ended.insert((victim.name.clone(), victim.claim));
            }
            told.push(Told::new(deadlock, broken));
        }
    }
    Ok(told)
}
