//! Where a peer is ahead of tenure, by the data.

use std::fmt::Write as _;

use super::table::{Table, exact, number};
use crate::contestant::RECORDED;
use crate::data::{Data, Pick};
use crate::questions::pairs::LIMIT;
use crate::stats::Figure;
use crate::stores::OTHERS;
use crate::updates;

/// What is compared: the question, its part, the store, the parameter that varies, a field, its name and unit, how
/// many of the unit one is, and whether more is better.
#[derive(Clone, Copy)]
struct Compared {
    question: &'static str,
    part: &'static str,
    store: &'static str,
    vary: &'static str,
    field: &'static str,
    what: &'static str,
    unit: &'static str,
    scale: f64,
    more: bool,
}

impl Compared {
    fn place(&self) -> (&str, &str, &str, &str) {
        (self.question, self.part, self.store, self.vary)
    }
}

const fn compared(
    (question, part, store, vary): (&'static str, &'static str, &'static str, &'static str),
    field: &'static str,
    what: &'static str,
    (unit, scale): (&'static str, f64),
    more: bool,
) -> Compared {
    Compared { question, part, store, vary, field, what, unit, scale, more }
}

const PAIRS: (&str, &str, &str, &str) = ("pairs", "", "redis", "tasks");
const HOT: (&str, &str, &str, &str) = ("hot", "", "redis", "processes");
const CROWD: (&str, &str, &str, &str) = ("crowd", "", "redis", "tasks");
const HELD: (&str, &str, &str, &str) = ("held", "", "redis", "leases");
const COMMANDS: (&str, &str, &str, &str) = ("hot", "commands", "redis", "processes");
const TAKEOVER: (&str, &str, &str, &str) = ("takeover", "", "redis", "ttl_ms");
const FLEET: (&str, &str, &str, &str) = ("redlock", "pairs", "redlock", "tasks");
const FLEET_HOT: (&str, &str, &str, &str) = ("redlock", "hot", "redlock", "processes");
const HUNG: (&str, &str, &str, &str) = ("redlock", "latency", "redlock", "hung");
const MS: (&str, f64) = (" ms", 1e-3);
const US: (&str, f64) = (" µs", 1.0);

const ALL: &[Compared] = &[
    compared(PAIRS, "pairs_per_s", "pairs", ("/s", 1.0), true),
    compared(PAIRS, "p99_us", "p99 of a pair", US, false),
    compared(PAIRS, "client_us_per_pair", "CPU of the client for a pair", US, false),
    compared(PAIRS, "server_us_per_pair", "CPU of the server for a pair", US, false),
    compared(HOT, "acquisitions_per_s", "acquisitions", ("/s", 1.0), true),
    compared(HOT, "transfers_per_s", "transfers to another owner", ("/s", 1.0), true),
    compared(HOT, "wait_p50_us", "p50 of the wait", MS, false),
    compared(HOT, "wait_p99_us", "p99 of the wait", MS, false),
    compared(HOT, "wait_max_us", "the longest wait", MS, false),
    compared(HOT, "jain", "Jain's index", ("", 1.0), true),
    compared(HOT, "client_us_per_acquisition", "CPU of the clients for an acquisition", US, false),
    compared(HOT, "server_us_per_acquisition", "CPU of the server for an acquisition", US, false),
    compared(COMMANDS, "commands_per_acquisition", "commands for an acquisition", ("", 1.0), false),
    compared(CROWD, "acquisitions_per_s", "acquisitions", ("/s", 1.0), true),
    compared(CROWD, "wait_p50_us", "p50 of the wait", MS, false),
    compared(CROWD, "wait_max_us", "the longest wait", MS, false),
    compared(TAKEOVER, "after_ms", "time from the kill to the next holder", (" ms", 1.0), false),
    compared(HELD, "cpu_percent", "CPU of the client", (" %", 1.0), false),
    compared(HELD, "bytes_per_lease", "memory of the client for a lease", (" B", 1.0), false),
    compared(HELD, "server_cpu_percent", "CPU of the server", (" %", 1.0), false),
    compared(HELD, "server_bytes_per_lease", "memory of the server for a lease", (" B", 1.0), false),
    compared(HUNG, "p50_us", "p50 of a pair", US, false),
    compared(HUNG, "p99_us", "p99 of a pair", US, false),
    compared(FLEET, "pairs_per_s", "pairs", ("/s", 1.0), true),
    compared(FLEET_HOT, "acquisitions_per_s", "acquisitions", ("/s", 1.0), true),
    compared(FLEET_HOT, "transfers_per_s", "transfers to another owner", ("/s", 1.0), true),
    compared(FLEET_HOT, "wait_p50_us", "p50 of the wait", MS, false),
    compared(FLEET_HOT, "wait_p99_us", "p99 of the wait", MS, false),
];

/// Every figure in which a peer's median is better than tenure's.
pub(super) fn text(data: &Data) -> String {
    let mut text = String::from(
        "## Where a peer is ahead\n\nEvery figure in which a peer's median is better than tenure's; `~` where the rounds of both overlap. A lock that whoever released it \
         may take again at once\nhas many short waits and few very long ones: read its waits beside its transfers and its longest wait.\n\n",
    );
    let mut table = Table::new(["what", "tenure", "ahead"]);
    let (mut compared, mut ahead) = (0, 0);
    let others = OTHERS.iter().flat_map(|store| {
        let asked = ALL.iter().filter(|what| [PAIRS, HOT, TAKEOVER].contains(&what.place()));
        asked.map(|what| Compared { store: store.name, ..*what })
    });
    for what in ALL.iter().copied().chain(others) {
        let all = Pick { question: what.question, store: what.store, params: &[], part: what.part };
        for value in data.values(&all, what.vary) {
            let params = [(what.vary, value)];
            let pick = Pick { params: &params, ..all };
            let Some(own) = data.figure(&pick, "tenure", what.field) else { continue };
            let peers = peers(data, &pick, what.field);
            compared += peers.len();
            let better =
                |theirs: &Figure| if what.more { theirs.median > own.median } else { theirs.median < own.median };
            let told = |median: f64| format!("{}{}", number(median * what.scale), what.unit);
            let better: Vec<String> = peers
                .iter()
                .filter(|(_, theirs)| better(theirs))
                .map(|(peer, theirs)| {
                    let apart = theirs.min > own.max || theirs.max < own.min;
                    format!("{peer} {}{}", if apart { "" } else { "~" }, told(theirs.median))
                })
                .collect();
            ahead += better.len();
            if !better.is_empty() {
                let store = if ["redis", "redlock"].contains(&what.store) {
                    String::new()
                } else {
                    format!(" over {}", what.store)
                };
                let place = format!("{}{store}, {} {}: {}", what.question, exact(value), what.vary, what.what);
                table.row([place, told(own.median), better.join(", ")]);
            }
        }
    }
    if compared == 0 {
        return text + "No peer was measured.\n";
    }
    text += &table.text();
    let _ = writeln!(text, "\n{ahead} of {compared} comparisons.");
    text
}

/// The figures of all but tenure and the limits.
pub(super) fn peers(data: &Data, pick: &Pick<'_>, field: &str) -> Vec<(String, Figure)> {
    let names = data.contestants(pick).into_iter();
    let peers =
        names.filter(|name| !["tenure", RECORDED, LIMIT, "classic pair", updates::NAME].contains(&name.as_str()));
    peers
        .filter_map(|peer| Some((data.figure(pick, &peer, field)?, peer)))
        .map(|(figure, peer)| (peer, figure))
        .collect()
}
