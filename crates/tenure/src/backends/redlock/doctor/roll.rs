//! Who is there, who can take part, and whether they are enough.

use super::clocks::Clocks;
use super::{Looked, Nodes};
use crate::backends::redis::doctor::checks::{Look, clock_words, milliseconds};
use crate::backends::redis::place::VERSION_MIN;
use crate::backends::redis::script::BALLOT_KEYS;
use crate::backends::redis::url::{Layout, Settings};
use crate::doctor::Checkup;

/// Nodes that cannot be looked at.
pub(super) fn missing(nodes: &mut Nodes<'_>, checkup: &mut Checkup) {
    let (needed, all) = (nodes.quorum(), nodes.all.len());
    for node in &mut nodes.all {
        let Err(error) = &node.looked else { continue };
        checkup.problem(
            format!("{}: it cannot be looked at: {error}", node.address),
            format!("locks need {needed} of the {all} nodes: with each that is missing, fewer others may fail"),
            "start it again; if it runs, see its log",
        );
        node.leave_out("does not answer");
    }
}

/// Servers that a client would refuse.
pub(super) fn unfit(nodes: &mut Nodes<'_>, checkup: &mut Checkup) {
    for node in &mut nodes.all {
        let Ok(Looked { seen, .. }) = &node.looked else { continue };
        let address = &node.address;
        let version = seen.info("redis_version").unwrap_or_default();
        let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        let (major, minor) = VERSION_MIN;
        let out = match seen.info("redis_mode") {
            _ if seen.info_refused.as_ref().is_some_and(|refused| refused.contains("NOAUTH")) => {
                checkup.problem(
                    format!("{address}: it wants a password, and the URL has none"),
                    "it refuses every lock (NOAUTH)",
                    "name it, for all nodes: redlock://USER:PASSWORD@H1,H2,H3 (redlock://:PASSWORD@… without a user)",
                );
                "wants a password".to_owned()
            }
            Some(mode @ ("cluster" | "sentinel")) => {
                let is = if mode == "cluster" { "part of a cluster" } else { "a sentinel" };
                checkup.problem(
                    format!("{address}: it is {is}"),
                    "a node is a master of its own, and this server is refused",
                    "start a Redis of its own there for locks, and name that in the URL",
                );
                format!("is {is}")
            }
            _ if !version.is_empty() && (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < VERSION_MIN => {
                checkup.problem(
                    format!("{address}: this Redis is too old ({version})"),
                    format!("tenure needs {major}.{minor} or later, and refuses it"),
                    "install a newer one there: it reads the files of the old one",
                );
                "is too old".to_owned()
            }
            _ => continue,
        };
        node.leave_out(out);
    }
}

/// Whether enough take part, and whether one of them is for nothing.
pub(super) fn size(nodes: &Nodes<'_>, checkup: &mut Checkup) {
    let (needed, all) = (nodes.quorum(), nodes.all.len());
    let taking_part = nodes.all.iter().filter(|node| node.out.is_none()).count();
    if taking_part < needed {
        let out = nodes.all.iter().filter_map(|node| Some(format!("{} {}", node.address, node.out.as_ref()?)));
        checkup.problem(
            format!("no quorum: {taking_part} of {all} nodes take part, {needed} are needed"),
            "no lock can be taken or kept",
            format!("bring back {} of these: {}", needed - taking_part, out.collect::<Vec<_>>().join("; ")),
        );
    }
    if all.is_multiple_of(2) {
        let written = match nodes.settings.layout {
            Layout::Plain => String::new(),
            _ => format!(
                ", wait for the longest ttl, and on every node, for it has its fleet's size written down: DEL {}",
                BALLOT_KEYS.join(" ")
            ),
        };
        checkup.advice(
            format!("the fleet has {all} nodes, an even number"),
            format!("{needed} of {all} are needed, so {} may fail: as many as of {} nodes", all - needed, all - 1),
            format!("add one node, or take one away: stop all clients{written}; then name the new fleet in every URL"),
        );
    }
}

/// A line on the fleet, and one on each node.
pub(super) fn facts(nodes: &Nodes<'_>, clocks: Clocks) -> Checkup {
    let mut report = Checkup::default();
    let taking_part = nodes.all.iter().filter(|node| node.out.is_none()).count();
    report.fact(
        "layout",
        match nodes.settings.layout {
            Layout::Plain => "plain (no order among those who wait, no tokens)",
            _ => "native",
        },
    );
    report
        .fact("fleet", format!("{taking_part} of {} nodes take part, {} are needed", nodes.all.len(), nodes.quorum()));
    for node in &nodes.all {
        let state = node.out.as_deref().unwrap_or("takes part");
        let words = match &node.looked {
            Ok(looked) => format!("{state}{}", about(looked, nodes.settings, clocks)),
            Err(_) => state.to_owned(),
        };
        report.fact(format!("node {}", node.address), words);
    }
    report
}

fn about(looked: &Looked, settings: &Settings, clocks: Clocks) -> String {
    let Looked { seen, .. } = looked;
    let look = Look { seen, settings };
    let clock = seen.ahead.map(|ahead| format!("clock {}", clock_words(ahead.us - clocks.median_us, "the others'")));
    let parts = [
        seen.info("redis_version").map(|version| format!("Redis {version}")),
        Some(format!("round trip {}", milliseconds(seen.round_trip))),
        clock,
        look.persistence_words(),
        look.memory_words(),
    ];
    parts.into_iter().flatten().map(|part| format!("; {part}")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Node;
    use super::*;
    use crate::backends::redis::doctor::server::Seen;

    #[test]
    fn a_server_that_is_too_old_or_of_another_kind_takes_no_part() {
        let settings = Settings::parse("redlock://a,b,c").unwrap();
        for (info, part) in [
            ("redis_version:6.0.16\nredis_mode:standalone", Some("too old (6.0.16)")),
            ("redis_version:7.0.15\nredis_mode:cluster", Some("part of a cluster")),
            ("redis_version:7.0.15\nredis_mode:sentinel", Some("a sentinel")),
            ("redis_version:6.2.0\nredis_mode:standalone", None),
            ("", None),
        ] {
            let node = |address: &crate::backends::redis::url::Address| Node {
                address: address.clone(),
                looked: Ok(Looked { seen: Seen::of(info, &[]), own: None, own_refused: None }),
                out: None,
            };
            let mut nodes = Nodes { all: settings.addresses.iter().map(node).collect(), settings: &settings };
            let mut checkup = Checkup::default();
            unfit(&mut nodes, &mut checkup);
            assert_eq!(checkup.findings.len(), if part.is_some() { 3 } else { 0 }, "{info}");
            assert!(checkup.findings.iter().all(|finding| finding.what.contains(part.unwrap_or_default())), "{info}");
            assert!(nodes.all.iter().all(|node| node.out.is_some() == part.is_some()), "{info}");
        }
    }
}
