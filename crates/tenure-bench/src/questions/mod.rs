//! What is measured: one question a file.

pub mod crowd;
pub mod embedded;
pub mod held;
pub mod hot;
pub mod names;
pub mod outage;
pub mod pairs;
pub mod redlock;
pub mod service;
pub mod takeover;
pub mod waiters;

use std::time::Duration;

use crate::bench::Bench;
use crate::contestant::Contestant;

/// One question.
pub struct Question {
    /// In one word.
    pub name: &'static str,
    /// In one sentence.
    pub text: &'static str,
    /// How long it is expected to take.
    pub takes: fn(&Bench) -> Duration,
    /// Measures, and writes down what came of it. An error ends this question alone.
    pub ask: fn(&mut Bench) -> Result<(), String>,
}

/// All questions, in the order they are asked.
pub fn all() -> Vec<Question> {
    vec![
        Question {
            name: "pairs",
            text: "what does it cost to acquire and release what nobody else wants?",
            takes: pairs::takes,
            ask: pairs::ask,
        },
        Question {
            name: "hot",
            text: "several processes want one name: how often does it change hands, who waits how long?",
            takes: hot::takes,
            ask: hot::ask,
        },
        Question {
            name: "crowd",
            text: "a thousand tasks of one process want one name",
            takes: crowd::takes,
            ask: crowd::ask,
        },
        Question {
            name: "takeover",
            text: "the holder is killed: when does the next one have the lock?",
            takes: takeover::takes,
            ask: takeover::ask,
        },
        Question { name: "held", text: "what does it cost to hold many leases?", takes: held::takes, ask: held::ask },
        Question {
            name: "outage",
            text: "the store dies under many leases: is each loss told in time, and at what cost?",
            takes: outage::takes,
            ask: outage::ask,
        },
        Question {
            name: "waiters",
            text: "what does an operation take in a long queue?",
            takes: waiters::takes,
            ask: waiters::ask,
        },
        Question {
            name: "names",
            text: "what does a pair cost among many names, and a name in the server?",
            takes: names::takes,
            ask: names::ask,
        },
        Question { name: "redlock", text: "five servers, some of them hung", takes: redlock::takes, ask: redlock::ask },
        Question {
            name: "service",
            text: "the lock service: pairs, one hot name, and what a waiter costs",
            takes: service::takes,
            ask: service::ask,
        },
        Question {
            name: "embedded",
            text: "the engine alone, the embedded store, and the command against flock",
            takes: embedded::takes,
            ask: embedded::ask,
        },
    ]
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.max(0.0))
}

/// What it takes these contestants to start one after another, and to work so many seconds each, in all rounds.
fn each(bench: &Bench, contestants: &[Contestant], works: f64) -> Duration {
    let once: f64 = contestants.iter().map(|contestant| contestant.starts_s() + works).sum();
    seconds(once * bench.plan.rounds as f64)
}
