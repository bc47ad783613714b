//! The engine: everything that is the same over every store.
//!
//! A claim's way: [`lock`] plans it, [`cohort`] or [`pending`] drives it to the grant, [`guard`] holds it,
//! [`watchdog`] renews it out of the [`registry`], and whoever leaves early leaves one of the [`errands`].

mod agenda;
mod cleanup;
mod client;
mod cohort;
mod core;
mod deadlock;
mod detach;
mod errands;
mod explain;
mod guard;
mod live;
mod lock;
mod memo;
mod outage;
mod pending;
mod plan;
mod registry;
mod request;
mod runtime;
mod session;
mod store_time;
mod wait;
mod watchdog;

use std::sync::{Arc, PoisonError};

pub use client::{Tenure, TenureBuilder};
pub use guard::{Guard, Lease};
pub use lock::Lock;
pub use plan::{TTL_DEFAULT, TTL_MAX, TTL_MIN, WaitStrategy};
pub use session::Session;

/// The longest label, in characters.
const LABEL_CHARS_MAX: usize = 256;

/// The longest note, in characters: a message to a client has to hold it.
const NOTE_CHARS_MAX: usize = 640;

/// The data behind our locks is never left half changed, so a panic elsewhere does not spoil it.
fn unpoisoned<T>(result: Result<T, PoisonError<T>>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

/// A label fit for terminals and tables: no control characters, bounded.
fn clean_label(label: &str) -> Arc<str> {
    clean(label, LABEL_CHARS_MAX).into()
}

/// A note of why a claim was ended: the same, with more room.
fn clean_note(note: &str) -> Arc<str> {
    let mut cleaned = clean(note, NOTE_CHARS_MAX);
    if cleaned.len() < note.len() {
        cleaned.push('…');
    }
    cleaned.into()
}

fn clean(text: &str, chars_max: usize) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(chars_max).collect()
}
