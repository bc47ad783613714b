//! One node by itself.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::super::ballot::Hello;
use super::super::wire::founders_of;
use crate::backends::redis::doctor::checks::Look;
use crate::backends::redis::doctor::server::{Seen, Server};
use crate::backends::redis::script::BALLOT_KEYS;
use crate::backends::redis::url::{Address, Layout, Settings};
use crate::backends::redis::wire::{number, text};
use crate::clock::Clock;
use crate::doctor::{Checkup, Fix};
use crate::error::Result;
use crate::token::Token;

/// What one node told.
pub(super) struct Looked {
    pub(super) seen: Seen,
    /// How it stands to its fleet, where that is written down and may be read.
    pub(super) own: Option<Own>,
    pub(super) own_refused: Option<String>,
}

/// What a node has written of itself: its hash, as `ballots.lua` keeps it.
#[derive(Debug)]
pub(super) struct Own {
    /// Its id; none if it takes no part.
    pub(super) node: Option<String>,
    pub(super) fleet: u64,
    pub(super) size: usize,
    /// Names the time since it has no data, if a client has seen it so.
    pub(super) blank: Option<String>,
    /// The highest token it may ever have stored.
    pub(super) highest: u64,
    pub(super) ttl_max: Duration,
    /// What the nodes called their blank times when its fleet began.
    pub(super) founders: Arc<[u64]>,
    /// Our wall clock when this was read.
    pub(super) read_at: u64,
}

const FIELDS: [&str; 9] = ["node", "fleet", "size", "blank", "floor", "top_a", "top_b", "ttl", "founders"];

impl Own {
    fn of(value: &Value, read_at: u64) -> Option<Self> {
        let Value::Array(items) = value else { return None };
        let [node, fleet, size, blank, floor, top_a, top_b, ttl, founders] = items.as_slice() else { return None };
        let filled = |value: &Value| text(value).filter(|text| !text.is_empty()).map(ToOwned::to_owned);
        let count = |value: &Value| number(value).unwrap_or(0);
        Some(Self {
            node: filled(node),
            fleet: count(fleet),
            size: usize::try_from(count(size)).unwrap_or(0),
            blank: filled(blank),
            highest: count(floor).max(count(top_a)).max(count(top_b)),
            ttl_max: Duration::from_millis(count(ttl)),
            founders: founders_of(text(founders).unwrap_or_default()),
            read_at,
        })
    }

    /// What it would say to a client.
    pub(super) fn hello(&self) -> Hello {
        let blank = self.blank.as_ref().and_then(|name| name.parse().ok()).unwrap_or(0);
        Hello {
            blank: self.node.is_none().then_some(blank),
            highest: Token(self.highest),
            ttl_max: self.ttl_max,
            founders: self.founders.clone(),
        }
    }
}

/// Asks a node everything. An error only if it does not answer.
pub(super) async fn look(settings: &Settings, clock: &Arc<dyn Clock>, address: Address) -> Result<Looked> {
    let mut server = Server::open(settings, clock, address).await?;
    let seen = server.look().await?;
    let (mut own, mut own_refused) = (None, None);
    if settings.layout != Layout::Plain {
        match server.ask(redis::cmd("HMGET").arg(BALLOT_KEYS[0]).arg(&FIELDS)).await? {
            Ok(value) => own = Own::of(&value, clock.wall_micros()),
            Err(refused) => own_refused = Some(refused.to_string()),
        }
    }
    Ok(Looked { seen, own, own_refused })
}

/// What is wrong with it, whoever else is in the fleet.
pub(super) fn examine(looked: &Looked, settings: &Settings, checkup: &mut Checkup) {
    let look = Look { seen: &looked.seen, settings };
    if let Some(refused) = &looked.own_refused {
        checkup.advice(
            format!("{} may not be read: how it stands to its fleet was not looked at ({refused})", BALLOT_KEYS[0]),
            "a node without data, or of another fleet, takes no part",
            Fix::from("look as an administrator").run(look.cli(&format!("HGETALL {}", BALLOT_KEYS[0]))),
        );
    }
    durability(&look, checkup);
    followers(&look, checkup);
    look.anywhere(checkup);
}

/// A node must not forget what it has said yes to.
fn durability(look: &Look<'_>, checkup: &mut Checkup) {
    let (what, crash) = match (look.seen.setting("appendonly"), look.seen.setting("appendfsync")) {
        (Some("no"), _) => ("there is no append-only file (appendonly no)".to_owned(), false),
        (Some("yes"), Some(fsync)) if fsync != "always" => {
            (format!("it answers before it has written (appendfsync {fsync})"), true)
        }
        _ => return,
    };
    let why = match (look.settings.layout, crash) {
        (Layout::Plain, _) => {
            "a node that comes back without what it had granted grants it again: two may hold at once, and this layout \
             has no token to protect"
        }
        (_, false) => {
            "a restart loses its data: it takes no part for the longest ttl there is, and if several lose theirs at once, \
             two may hold at once and tokens may repeat"
        }
        (_, true) => {
            "after a crash of its machine it lacks the last locks and tokens and nobody notices: if that makes more than \
             half of the nodes differ, two may hold at once and tokens may repeat"
        }
    };
    let fix = if crash { look.set("appendfsync", "always") } else { look.write_all() };
    checkup.problem(what, why, fix);
}

fn followers(look: &Look<'_>, checkup: &mut Checkup) {
    let replicas = look.seen.number("connected_slaves").unwrap_or(0);
    if replicas > 0 {
        checkup.advice(
            format!("it has {replicas} replica{}", if replicas == 1 { "" } else { "s" }),
            "one that takes its place lacks its last locks and tokens, and nobody notices",
            "let nothing promote a replica of a node: bring the node back with its own append-only file instead",
        );
    }
}
