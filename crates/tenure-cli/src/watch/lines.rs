//! A change as a line.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tenure::watch::{Change, ChangeKind};
use tenure::{Name, Owner, Token};

use crate::duration;
use crate::failure::Failure;
use crate::output::json_line;
use crate::plain::plain;
use crate::show::shown;

#[derive(Serialize)]
struct Told<'a> {
    event: &'static str,
    name: &'a Name,
    owner: Option<&'a Owner>,
    label: Option<&'a str>,
    token: Option<Token>,
    at: String,
    held_ms: Option<u64>,
    waited_ms: Option<u64>,
    by: Option<&'a str>,
    reason: Option<&'a str>,
}

/// One line: JSON, or for people.
pub(crate) fn of_change(change: &Change, json: bool) -> Result<String, Failure> {
    if !json {
        return Ok(for_people(change) + "\n");
    }
    json_line(&Told {
        event: change.kind.as_str(),
        name: &change.name,
        owner: change.owner.as_ref(),
        label: change.label.as_deref(),
        token: change.token,
        at: at(change),
        held_ms: change.held.map(duration::ms),
        waited_ms: change.waited.map(duration::ms),
        by: change.broken_by.as_ref().map(|(by, _)| by.as_str()),
        reason: change.broken_by.as_ref().map(|(_, reason)| reason.as_str()),
    })
}

/// That so many changes were not told, since whoever reads was too slow.
pub(crate) fn of_dropped(count: u64, json: bool) -> String {
    if json {
        return format!("{{\"event\":\"dropped\",\"count\":{count}}}\n");
    }
    let changes = if count == 1 { "change was" } else { "changes were" };
    format!("{count} {changes} dropped: what reads this is too slow\n")
}

/// When it happened, as in RFC 3339.
pub(crate) fn at(change: &Change) -> String {
    let at = SystemTime::checked_add(&UNIX_EPOCH, Duration::from_micros(change.at_micros)).unwrap_or(UNIX_EPOCH);
    humantime::format_rfc3339_millis(at).to_string()
}

fn for_people(change: &Change) -> String {
    format!(
        "{}  {:<8}  {}  {}{}",
        at(change),
        change.kind.as_str(),
        plain(change.name.as_str()),
        shown(change.label.as_ref()),
        rest(change)
    )
}

/// What is known of a change besides when it was, what it was and whose.
pub(crate) fn rest(change: &Change) -> String {
    let time = |word: &str, time: Option<Duration>| time.map(|time| format!("  {word} {}", duration::show(time)));
    let token = change.token.map(|token| format!("  token {token}"));
    let waited = time("waited", change.waited);
    // Of a grant this is how long ago it was.
    let held = time("held", change.held).filter(|_| change.kind != ChangeKind::Granted);
    let broken = change.broken_by.as_ref().map(|(by, reason)| {
        let why = if reason.is_empty() { String::new() } else { format!(": {}", plain(reason)) };
        format!("  by {}{why}", plain(by))
    });
    [token, waited, held, broken].into_iter().flatten().collect()
}
