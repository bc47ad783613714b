//! What makes locks unsafe or slow in this ensemble.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use zookeeper_client::Error as Refused;

use super::desk::Desk;
use super::error::of_request;
use super::probe::word;
use super::session::{Kind, Session};
use crate::doctor::Checkup;
use crate::error::Result;

/// How long one server may take to tell of itself.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many writes are measured; the middle one is told.
const WRITES: usize = 11;
/// A quorum of fewer servers ends with any one of them.
const MEMBERS_MIN: usize = 3;
/// A write that takes longer makes short ttls unsafe to rely on.
const WRITE_MAX: Duration = Duration::from_millis(100);
/// From so many nodes on servers take long to start, and elections long to end.
const NODES_MAX: u64 = 2_000_000;

/// What lets servers tell of themselves.
const TELL: &str = "4lw.commands.whitelist=srvr,conf,ruok";

/// A line that servers read when they start. No command changes it while they run.
fn in_zoo_cfg(line: &str) -> String {
    format!("write the line {line} in each server's zoo.cfg, and restart one after another")
}

/// What a server tells of itself.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    version: Option<String>,
    mode: Option<String>,
    nodes: Option<u64>,
    latency: Option<String>,
}

/// A server, and what it told or why it did not.
type Member = (String, std::result::Result<Told, String>);

/// # Cancel safety
///
/// Cancel safe: no claim is made.
pub(super) async fn examine(desk: Arc<Desk>) -> Result<Checkup> {
    let mut checkup = Checkup::default();
    let session = desk.usual().await?;
    members(&desk, &mut checkup).await;
    times(&desk, &session, &mut checkup).await?;
    sessions(&desk, &mut checkup);
    layout(&desk, &session, &mut checkup).await;
    Ok(checkup)
}

async fn members(desk: &Desk, checkup: &mut Checkup) {
    let asked = desk.settings.hosts.iter().map(|(host, port)| async move {
        let told = word(desk.settings.tls.as_ref(), host, *port, "srvr", PATIENCE).await;
        (format!("{host}:{port}"), told.map_err(|error| error.to_string()).map(|told| parse(&told)))
    });
    let members: Vec<Member> = join_all(asked).await;
    for (member, told) in &members {
        let shown = match told {
            Err(why) => format!("does not answer: {why}"),
            Ok(Told { mode: None, .. }) => "answers, and does not tell of itself (srvr)".to_owned(),
            Ok(told) => {
                let part = |part: &Option<String>| part.clone().unwrap_or_else(|| "?".to_owned());
                format!(
                    "{}, version {}, latency min/avg/max {} ms",
                    part(&told.mode),
                    part(&told.version),
                    part(&told.latency)
                )
            }
        };
        checkup.fact(format!("server {member}"), shown);
    }
    judge(&members, checkup);
}

fn judge(members: &[Member], checkup: &mut Checkup) {
    let silent: Vec<&str> =
        members.iter().filter(|(_, told)| told.is_err()).map(|(member, _)| member.as_str()).collect();
    if !silent.is_empty() {
        checkup.problem(
            format!("{} of {} servers do not answer: {}", silent.len(), members.len(), silent.join(", ")),
            "each one more that fails may cost the quorum, and without it no lock is granted or renewed",
            "start them again, or take them out of the ensemble and the URL",
        );
    }
    let told: Vec<&Told> = members.iter().filter_map(|(_, told)| told.as_ref().ok()).collect();
    if told.iter().any(|told| told.mode.is_none()) {
        checkup.advice(
            "some servers do not tell of themselves",
            "who leads, and how long requests take there, is not seen",
            in_zoo_cfg(TELL),
        );
    }
    let mode = |wanted: &str| told.iter().filter(|told| told.mode.as_deref() == Some(wanted)).count();
    if mode("standalone") > 0 && members.len() > 1 {
        checkup.problem(
            format!("{} of the {} servers are standalone: they are no ensemble", mode("standalone"), members.len()),
            "clients that use one of them and clients that use another may hold the same name at once",
            "name the servers of one ensemble only",
        );
    } else if mode("standalone") > 0 {
        checkup.problem(
            "the server is standalone",
            "when it is down no lock is granted or renewed, and when its disk is lost all are",
            "run an ensemble of three or five servers",
        );
    } else if members.len() < MEMBERS_MIN {
        checkup.advice(
            format!("the URL names {} of the servers", members.len()),
            "when those are down the others are not found",
            "name all servers: zookeeper://H1,H2,H3/CHROOT",
        );
    } else if silent.is_empty() && mode("leader") == 0 && told.iter().all(|told| told.mode.is_some()) {
        checkup.problem(
            "none of the servers leads",
            "they are electing, or the leader is not in the URL",
            "look again",
        );
    }
    let mut versions: Vec<&str> = told.iter().filter_map(|told| told.version.as_deref()).collect();
    versions.sort_unstable();
    versions.dedup();
    if versions.len() > 1 {
        checkup.advice(
            format!("the servers have different versions: {}", versions.join(", ")),
            "what the newer ones can do fails at the older ones",
            "upgrade all",
        );
    }
    if let Some(nodes) = told.iter().filter_map(|told| told.nodes).max() {
        checkup.fact("znodes", nodes.to_string());
        if nodes > NODES_MAX {
            checkup.advice(
                format!("there are {nodes} znodes"),
                "servers take long to start, and followers long to catch up: leases may run out meanwhile",
                "remove what is not needed, or give locks an ensemble of their own",
            );
        }
    }
}

fn parse(told: &str) -> Told {
    let line = |key: &str| told.lines().find_map(|line| line.strip_prefix(key)).map(|value| value.trim().to_owned());
    Told {
        version: line("Zookeeper version:").and_then(|version| Some(version.split(['-', ',']).next()?.to_owned())),
        mode: line("Mode:"),
        nodes: line("Node count:").and_then(|count| count.parse().ok()),
        latency: line("Latency min/avg/max:"),
    }
}

async fn times(desk: &Desk, session: &Session, checkup: &mut Checkup) -> Result<()> {
    let mut trips = Vec::new();
    for _ in 0..WRITES {
        let began = desk.clock.now();
        session.beat().await.map_err(of_request)?;
        trips.push(desk.clock.now().since(began));
    }
    trips.sort();
    let write = trips[trips.len() / 2];
    checkup.fact("a write takes", format!("{:.2} ms", write.as_secs_f64() * 1000.0));
    if write > WRITE_MAX {
        checkup.advice(
            format!("a write takes {} ms", write.as_millis()),
            "each lock costs two of them, and a renewal one",
            in_zoo_cfg("dataLogDir=DIRECTORY") + ": a disk of its own for the transaction log",
        );
    }
    Ok(())
}

fn sessions(desk: &Desk, checkup: &mut Checkup) {
    let limits = desk.limits();
    checkup.fact(
        "ttl",
        format!(
            "{:?} to {:?} (minSessionTimeout, but two ticks at least, to maxSessionTimeout)",
            limits.floor(),
            limits.max
        ),
    );
    if desk.ticks_are_told() {
        checkup.fact("tick", format!("{:?}", limits.tick));
    } else {
        checkup.fact("tick", format!("not told by all servers; taken for {:?}", limits.tick));
        checkup.advice(
            "not every server tells its tickTime",
            "should one have a longer tick, its leases are trusted longer than they live",
            format!("{}; or give the longest tickTime in the URL, as ?tick=", in_zoo_cfg(TELL)),
        );
    }
    if desk.limits_differ() {
        checkup.problem(
            "the servers have different limits for sessions",
            "only ttls that all of them allow can be had; should a server change its limits, claims are lost when a client comes to it",
            "write the same lines for tickTime, minSessionTimeout and maxSessionTimeout in every server's zoo.cfg, and \
             restart one after another",
        );
    }
    if limits.min > Duration::from_secs(10) {
        checkup.problem(
            format!("minSessionTimeout is {:?}", limits.min),
            "tenure's default ttl of 10 s is refused",
            in_zoo_cfg("minSessionTimeout=4000"),
        );
    }
    if limits.tick * 4 > Duration::from_secs(10) {
        checkup.advice(
            format!("tickTime is {:?}", limits.tick),
            "a lease counts from a tick before its last renewal: little is left of a ttl of a few ticks",
            format!("{}; or use a ttl of ten ticks and more", in_zoo_cfg("tickTime=2000")),
        );
    }
}

async fn layout(desk: &Desk, session: &Session, checkup: &mut Checkup) {
    checkup.fact("chroot", desk.paths.root());
    let containers = desk.has_containers();
    checkup.fact("znodes of idle names", if containers { "are removed by the server" } else { "stay" });
    if !containers {
        checkup.advice(
            "the servers have no container nodes",
            "the znode of each name that was ever used stays",
            "upgrade to ZooKeeper 3.5.3 or newer",
        );
    }
    let listed = session.ask(Kind::Read, || session.client.list_ephemerals(desk.paths.root())).await;
    if matches!(listed, Err(Refused::Unimplemented)) {
        checkup.advice(
            "the servers do not list the nodes of a session",
            "a claim whose answer was lost may stay as long as its client runs",
            "upgrade to ZooKeeper 3.6 or newer",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SRVR: &str = "Zookeeper version: 3.8.0-${mvngit.commit.id}, built on 2023-10-22 06:20 UTC\nLatency min/avg/max: 0/0.5/12\n\
        Received: 5\nSent: 4\nConnections: 1\nOutstanding: 0\nZxid: 0x100000002\nMode: follower\nNode count: 5\n";

    fn told(mode: &str) -> std::result::Result<Told, String> {
        Ok(parse(&SRVR.replace("follower", mode)))
    }

    fn found(members: &[Member]) -> Vec<String> {
        let mut checkup = Checkup::default();
        judge(members, &mut checkup);
        checkup.findings.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn a_server_tells_of_itself() {
        let told = parse(SRVR);
        assert_eq!((told.version.as_deref(), told.mode.as_deref()), (Some("3.8.0"), Some("follower")));
        assert_eq!((told.nodes, told.latency.as_deref()), (Some(5), Some("0/0.5/12")));
        assert_eq!(parse("srvr is not executed because it is not in the whitelist."), Told::default());
    }

    #[test]
    fn what_is_wrong_with_an_ensemble_is_found() {
        let members =
            |modes: &[&str]| -> Vec<Member> { modes.iter().map(|mode| (format!("{mode}:2181"), told(mode))).collect() };
        assert!(found(&members(&["leader", "follower", "follower"])).is_empty());
        assert!(found(&members(&["standalone"]))[0].contains("standalone"));
        assert!(found(&members(&["standalone", "standalone"]))[0].contains("no ensemble"));
        assert!(found(&members(&["leader"]))[0].contains("names 1"));
        assert!(found(&members(&["follower", "follower", "follower"]))[0].contains("none of the servers leads"));
        let mut silent = members(&["leader", "follower"]);
        silent.push(("gone:2181".to_owned(), Err("refused".to_owned())));
        assert_eq!(found(&silent), ["1 of 3 servers do not answer: gone:2181"]);
        let mut shy = members(&["leader", "follower"]);
        shy.push(("shy:2181".to_owned(), Ok(Told::default())));
        assert_eq!(found(&shy), ["some servers do not tell of themselves"]);
    }
}
