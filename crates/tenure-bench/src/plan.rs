//! How long everything is measured, and how often.

use serde_json::{Value, json};

use crate::stores::OTHERS;

/// What is measured, and how thoroughly.
#[derive(Clone, Debug)]
pub struct Plan {
    /// To see whether everything works, not to learn figures.
    pub quick: bool,
    /// How often each measurement is made.
    pub rounds: usize,
    /// The questions; all, if empty.
    pub only: Vec<String>,
    /// The stores; all, if empty.
    pub stores: Vec<String>,
    /// Peers or programs that take part; all, if none are named.
    pub peers: Option<Vec<String>>,
}

impl Plan {
    /// One of two, by what the run is for.
    pub fn choose<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Whether a question is asked.
    pub fn asks(&self, question: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == question)
    }

    /// Whether a store is measured. To see whether everything works, Redis and what needs no server are enough, unless
    /// others are named.
    pub fn measures(&self, store: &str) -> bool {
        let others = OTHERS.iter().any(|other| other.name == store);
        if self.stores.is_empty() { !(self.quick && others) } else { self.stores.iter().any(|named| named == store) }
    }

    /// Whether a peer takes part, by its name or by its program's.
    pub fn invites(&self, peer: &str, program: &str) -> bool {
        let named = |peers: &Vec<String>| peers.iter().any(|name| name == peer || name == program);
        !self.quick && self.peers.as_ref().is_none_or(named)
    }

    /// For the first line of the raw data.
    pub fn told(&self) -> Value {
        json!({ "quick": self.quick, "rounds": self.rounds, "only": self.only, "stores": self.stores, "peers": self.peers })
    }
}
