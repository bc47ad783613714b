//! Time: what the nodes' clocks say, how far their tokens are ahead, and how long an answer takes.

use std::time::Duration;

use super::super::ballot::{AHEAD_MAX, median};
use super::super::fleet::node_timeout;
use super::{Looked, Nodes};
use crate::TTL_DEFAULT;
use crate::backends::redis::doctor::checks::{SKEW_MAX_US, clock_words, milliseconds};
use crate::clock::micros;
use crate::doctor::Checkup;

/// A ttl that is short, and usual.
const TTL_SHORT: Duration = Duration::from_secs(1);
/// The longest that a URL may let a node take, in ms.
const NODE_TIMEOUT_MAX: u128 = 1000;
const SET_CLOCKS: &str = "on each node: chronyc tracking (or timedatectl), and let NTP slew the clock";

/// What most clocks say.
#[derive(Clone, Copy)]
pub(super) struct Clocks {
    /// Less ours, in microseconds.
    pub(super) median_us: i64,
}

fn signed(us: u64) -> i64 {
    i64::try_from(us).unwrap_or(i64::MAX)
}

/// The nodes' clocks against each other, and against ours.
pub(super) fn examine(nodes: &mut Nodes<'_>, checkup: &mut Checkup) -> Clocks {
    let plain = nodes.plain();
    let readings: Vec<_> = nodes.seen().filter_map(|(_, _, looked)| looked.seen.ahead).collect();
    let doubt_us = readings.iter().map(|ahead| ahead.doubt_us).max().unwrap_or(0);
    let median_us = median(readings.iter().map(|ahead| ahead.us).collect()).unwrap_or(0);
    let far = signed(micros(AHEAD_MAX));
    for node in &mut nodes.all {
        let Ok(Looked { seen, .. }) = &node.looked else { continue };
        let Some(ahead) = seen.ahead else { continue };
        let apart = ahead.us - median_us;
        let what = format!("{}: its clock is {}", node.address, clock_words(apart, "the others'"));
        if apart.abs() > far && !plain {
            checkup.problem(what, "a node that is more than 10 s off does not count", SET_CLOCKS);
            node.leave_out("has a wrong clock");
        } else if apart.abs() > SKEW_MAX_US + ahead.doubt_us + doubt_us {
            checkup.advice(
                what,
                "one of them is wrong: a step that sets it right ends locks early or late on that node, and at 10 s it \
                 would no longer count",
                SET_CLOCKS,
            );
        }
    }
    if median_us.abs() > SKEW_MAX_US + doubt_us {
        checkup.advice(
            format!("most nodes' clocks are {}", clock_words(median_us, "this machine's")),
            "leases compare no clocks of two machines, so this is no danger by itself; but one side is wrong, and a step \
             that sets the nodes right ends locks early or late",
            "on the nodes and here: chronyc tracking (or timedatectl), and let NTP slew the clock",
        );
    }
    Clocks { median_us }
}

/// Tokens that are ahead of the time: the clocks were set back since.
pub(super) fn tokens(nodes: &Nodes<'_>, clocks: Clocks, checkup: &mut Checkup) {
    for (_, address, looked) in nodes.seen() {
        let Some(own) = &looked.own else { continue };
        let ahead = signed(own.highest) - signed(own.read_at) - clocks.median_us;
        let what = || format!("{address}: its highest token is {}", clock_words(ahead, "what the clocks say"));
        let fix = || {
            let wait = Duration::from_micros(ahead.unsigned_abs()).as_secs() + 1;
            format!("find out which clocks were set back; after {wait} s they have caught up")
        };
        if ahead > signed(micros(AHEAD_MAX)) {
            checkup.problem(
                what(),
                "for names whose last token is more than 10 s ahead the node does not count",
                fix(),
            );
        } else if ahead > SKEW_MAX_US {
            checkup.advice(what(), "tokens still grow; but clocks went back, and locks end late by as much", fix());
        }
    }
}

/// How long an answer takes, against how long it may.
pub(super) fn speed(nodes: &mut Nodes<'_>, checkup: &mut Checkup) {
    let settings = nodes.settings;
    let [usual, short] = [TTL_DEFAULT, TTL_SHORT].map(|ttl| node_timeout(settings, ttl));
    let set = settings.node_timeout.is_some();
    for node in &mut nodes.all {
        let Ok(Looked { seen, .. }) = &node.looked else { continue };
        let trip = seen.round_trip;
        let what = format!("{}: a round trip takes {}", node.address, milliseconds(trip));
        let longer = (trip.as_millis() * 4 + 1).min(NODE_TIMEOUT_MAX);
        let fix = format!("run tenure nearer to it, or let nodes take longer: node_timeout={longer}ms in the URL");
        let may_take = |limit: Duration, ttl: &str| format!("a node may take {}{ttl}", milliseconds(limit));
        let by_ttl = |ttl: Duration| if set { String::new() } else { format!(" at a ttl of {ttl:?}") };
        if trip > usual {
            checkup.problem(what, format!("{}: it does not count", may_take(usual, &by_ttl(TTL_DEFAULT))), fix);
            node.leave_out("is too slow");
        } else if trip * 2 > usual {
            let why = format!("{}: a little slower, and it does not count", may_take(usual, &by_ttl(TTL_DEFAULT)));
            checkup.advice(what, why, fix);
        } else if trip > short {
            let why = format!("{}: with so short a ttl it does not count", may_take(short, &by_ttl(TTL_SHORT)));
            checkup.advice(what, why, fix);
        }
    }
}
