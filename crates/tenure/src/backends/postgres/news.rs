//! What clients tell each other: who was granted, and whose claim was broken.

use serde::{Deserialize, Serialize};

use crate::backend::Event;
use crate::error::Loss;
use crate::machine::{Applied, Grant, Op, Outcome};
use crate::owner::ClaimId;

/// What the name of every client's channel begins with.
pub(super) const PREFIX: &str = "tenure_";
/// The longest message PostgreSQL carries is a little longer.
const MESSAGE_MAX: usize = 7_000;

/// A message: JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    Granted {
        claim: ClaimId,
        grant: Grant,
        number: u64,
    },
    Broken {
        claim: ClaimId,
        number: u64,
        by: String,
        reason: String,
    },
    /// To oneself: whether anything is heard.
    Hello {
        nonce: u64,
    },
}

impl Message {
    /// What was sent, if it is one of ours.
    pub(super) fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    pub(super) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    pub(super) fn event(self) -> Option<Event> {
        match self {
            Self::Granted { claim, grant, number } => Some(Event::Granted { id: claim, grant, number }),
            Self::Broken { claim, number, by, reason } => {
                Some(Event::Ended { id: claim, number, loss: Loss::Broken { by, reason } })
            }
            Self::Hello { .. } => None,
        }
    }
}

/// What is sent when a transaction commits: channels and messages.
#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) channels: Vec<String>,
    pub(super) messages: Vec<String>,
}

impl News {
    /// Whom an operation tells what.
    pub(super) fn note(&mut self, applied: &Applied, op: &Op) {
        for granted in &applied.grants {
            let message = Message::Granted { claim: granted.id, grant: granted.grant, number: granted.number };
            self.add(&granted.inbox, &message);
        }
        if let (Outcome::Evicted(evicted), Op::Break { by, reason, .. }) = (&applied.outcome, op) {
            for ended in evicted {
                let (by, reason) = (by.to_string(), reason.to_string());
                self.add(&ended.inbox, &Message::Broken { claim: ended.id, number: ended.number, by, reason });
            }
        }
        if let (Outcome::WaiterEnded { id, inbox, number }, Op::BreakWaiter { by, reason, .. }) = (&applied.outcome, op)
        {
            let (by, reason) = (by.to_string(), reason.to_string());
            self.add(inbox, &Message::Broken { claim: *id, number: *number, by, reason });
        }
    }

    fn add(&mut self, inbox: &str, message: &Message) {
        let text = message.text();
        // Too long for a message: the next renewal tells it.
        if (1..=MESSAGE_MAX).contains(&text.len()) && key_of(inbox).is_some() {
            self.channels.push(inbox.to_owned());
            self.messages.push(text);
        }
    }
}

/// The key of the advisory lock that the client of an inbox holds.
pub(super) fn key_of(inbox: &str) -> Option<i64> {
    let digits = inbox.strip_prefix(PREFIX).filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok().map(u64::cast_signed)
}
