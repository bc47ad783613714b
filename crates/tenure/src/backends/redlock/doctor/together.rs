//! How the nodes stand to each other: each must be one of its own, and all of one fleet.

use std::time::Duration;

use super::super::ballot::{Admission, Hello, admission};
use super::{Looked, Nodes};
use crate::TTL_DEFAULT;
use crate::backends::redis::doctor::redis_cli;
use crate::backends::redis::script::BALLOT_KEYS;
use crate::backends::redis::url::Address;
use crate::doctor::{Checkup, Fix, quoted};

/// What makes a node one without data, which is then let in as any other.
fn forget(nodes: &Nodes<'_>, address: &Address) -> String {
    redis_cli(nodes.settings, address, &format!("DEL {}", BALLOT_KEYS.join(" ")))
}

/// Nodes that copy another server.
pub(super) fn replicas(nodes: &mut Nodes<'_>, checkup: &mut Checkup) {
    let masters: Vec<(usize, String, Option<String>)> = nodes
        .seen()
        .filter(|(_, _, looked)| looked.seen.info("role") == Some("slave"))
        .map(|(index, _, Looked { seen, .. })| {
            let part = |field: &str| seen.info(field).unwrap_or("?").to_owned();
            let master = format!("{}:{}", part("master_host"), part("master_port"));
            (index, master, seen.info("master_replid").map(ToOwned::to_owned))
        })
        .collect();
    for (index, master, history) in &masters {
        let same = |looked: &Looked| history.is_some() && looked.seen.info("master_replid") == history.as_deref();
        let of_fleet = nodes
            .seen()
            .find(|(other, _, looked)| other != index && looked.seen.info("role") == Some("master") && same(looked));
        let beside = masters.iter().find(|(other, of, _)| other != index && of == master);
        let also = match (of_fleet, beside) {
            (Some((_, node, _)), _) => format!(", the node {node} of this fleet"),
            (None, Some((other, ..))) => format!(", as {} is", nodes.all[*other].address),
            (None, None) => String::new(),
        };
        let address = nodes.all[*index].address.clone();
        checkup.problem(
            format!("{address}: it is a replica of {master}{also}"),
            "a node is a master that knows nothing of the others: a replica takes no locks, and has no vote of its own",
            Fix::from("make it a master without data, now and in its redis.conf: it is then let in as any other")
                .run(redis_cli(nodes.settings, &address, "REPLICAOF NO ONE"))
                .run(redis_cli(nodes.settings, &address, "CONFIG REWRITE"))
                .run(forget(nodes, &address)),
        );
        nodes.all[*index].leave_out("is a replica");
    }
}

/// One server behind two addresses, or one server's data in two.
pub(super) fn doubles(nodes: &mut Nodes<'_>, checkup: &mut Checkup) {
    let identities: Vec<(usize, Option<String>, Option<String>)> = nodes
        .seen()
        .map(|(index, _, looked)| {
            let own = looked.own.as_ref();
            let id = own.and_then(|own| own.node.clone().or_else(|| own.blank.clone()));
            (index, looked.seen.info("run_id").map(ToOwned::to_owned), id)
        })
        .collect();
    for (at, (index, run, id)) in identities.iter().enumerate() {
        let Some((first, first_run, _)) = identities[..at]
            .iter()
            .find(|(_, other_run, other_id)| (run.is_some() && run == other_run) || (id.is_some() && id == other_id))
        else {
            continue;
        };
        let [address, other] = [*index, *first].map(|index| nodes.all[index].address.clone());
        if nodes.all[*index].out.is_some() || nodes.all[*first].out.is_some() {
            // A replica has its master's id.
            continue;
        }
        if run.is_some() && first_run.is_some() && run != first_run {
            checkup.problem(
                format!("{address}: it has the data of {other}: one was made from a copy of the other"),
                "it has forgotten whatever came after the copy, and clients take the two for one server",
                format!("on the copy, if that is {address}: {}", forget(nodes, &address)),
            );
            nodes.all[*index].leave_out(format!("has the data of {other}"));
        } else {
            checkup.problem(
                format!("{address}: it is the same server as {other}"),
                "it would have two votes, so that fewer than half of the servers could grant a lock: clients refuse the URL",
                "name each server once, by one address",
            );
            nodes.all[*index].leave_out(format!("is the same server as {other}"));
        }
    }
}

/// Nodes that are of another fleet.
pub(super) fn strangers(nodes: &mut Nodes<'_>, checkup: &mut Checkup) {
    let size = nodes.all.len();
    let members: Vec<(usize, u64, usize)> = nodes
        .seen()
        .filter_map(|(index, _, looked)| looked.own.as_ref().map(|own| (index, own)))
        .filter(|(_, own)| own.node.is_some())
        .map(|(index, own)| (index, own.fleet, own.size))
        .collect();
    // As clients do it: the fleet of most.
    let mut votes: Vec<(u64, usize)> = Vec::new();
    for (_, fleet, _) in &members {
        match votes.iter_mut().find(|(voted, _)| voted == fleet) {
            Some((_, count)) => *count += 1,
            None => votes.push((*fleet, 1)),
        }
    }
    let common = votes.into_iter().max_by_key(|(fleet, count)| (*count, *fleet)).map(|(fleet, _)| fleet);
    for (index, fleet, of) in &members {
        let address = nodes.all[*index].address.clone();
        let what = if *of != size {
            format!("belongs to a fleet of {of} nodes, not of {size}")
        } else if Some(*fleet) != common {
            "belongs to another fleet".to_owned()
        } else {
            continue;
        };
        checkup.problem(
            format!("{address}: it {what}"),
            "two clients that do not name the same nodes could each find more than half: it takes no part here",
            format!(
                "name all nodes of one fleet in the URL; or, if it serves no other fleet any more: {}",
                forget(nodes, &address)
            ),
        );
        nodes.all[*index].leave_out(what);
    }
}

/// Nodes that have no data: new, or they lost it.
pub(super) fn blanks(nodes: &mut Nodes<'_>, checkup: &mut Checkup) {
    let hello = |looked: &Looked| looked.own.as_ref().map(super::node::Own::hello);
    let hellos: Vec<Option<Hello>> =
        nodes.all.iter().map(|node| node.looked.as_ref().ok().filter(|_| node.out.is_none()).and_then(hello)).collect();
    let blank = |hello: &Option<Hello>| hello.as_ref().is_some_and(|hello| hello.blank.is_some());
    let blanks: Vec<usize> = (0..hellos.len()).filter(|index| blank(&hellos[*index])).collect();
    let members = hellos.iter().flatten().count() - blanks.len();
    let decided = admission(&hellos, &vec![Duration::ZERO; hellos.len()]);
    if blanks.is_empty() {
        return;
    }
    if let Admission::NewFleet(..) = decided {
        let new = if members == 0 {
            "no node has data: the first client that reaches all of them begins the fleet"
        } else {
            "a client has let some nodes in and ended: the next one that reaches all of them lets the others in"
        };
        checkup.fact("new", new);
        return;
    }
    for index in &blanks {
        let address = nodes.all[*index].address.clone();
        let up = nodes.all[*index].looked.as_ref().ok().and_then(|looked| looked.seen.number("uptime_in_seconds"));
        let up = up.map_or_else(String::new, |seconds| format!(", up for {seconds} s"));
        let what = format!("{address}: it has no data: it is new, or has lost it{up}");
        match &decided {
            Admission::Wait(wait) => checkup.problem(
                what,
                format!(
                    "it may have helped to grant what it no longer knows, so it takes no part for the longest ttl that \
                     the others have recorded ({})",
                    seconds(hellos.iter().flatten().map(|hello| hello.ttl_max).max().unwrap_or_default())
                ),
                Fix::from(format!(
                    "if this is the node it always was, emptied, any client that stays connected for {} lets it in; a new \
                     server in place of another needs a new fleet (docs/backends/redlock.md, Keys)",
                    seconds(*wait)
                ))
                .run(admit(nodes, *wait)),
            ),
            _ if members == 0 => checkup.problem(
                what,
                "a new fleet begins when a client reaches all nodes, and not before",
                "bring up the other nodes of this fleet, each without data of another",
            ),
            _ => checkup.problem(
                what,
                format!(
                    "{} nodes with data are needed to let it in, and {members} are there: nobody knows what was granted",
                    hellos.len() - nodes.quorum() + 1
                ),
                format!(
                    "bring back nodes that have data; or give up what was granted: stop all clients, wait for the longest \
                     ttl, make every node new, those with data too: {}",
                    nodes.all.iter().map(|node| forget(nodes, &node.address)).collect::<Vec<_>>().join("; ")
                ),
            ),
        }
        nodes.all[*index].leave_out("has no data");
    }
}

/// Runs a client for as long as it takes to let a node in. A URL with a password is to be in its environment.
fn admit(nodes: &Nodes<'_>, wait: Duration) -> String {
    let sleep = format!("-- sleep {}", wait.max(TTL_DEFAULT).as_secs() + 5);
    if nodes.settings.login.password.is_some() {
        return format!("TENURE_URL=\"${{TENURE_URL:?must be the URL with its password}}\" tenure run admit {sleep}");
    }
    format!("tenure run admit --on {} {sleep}", quoted(&nodes.settings.shown))
}

fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_millis().div_ceil(1000))
}
