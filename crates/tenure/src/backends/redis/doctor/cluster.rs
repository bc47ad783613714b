//! A cluster as a whole: every slot covered, every master followed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::server::{Server, fields};
use super::{Address, Checkup, Clock, Result, Settings, redis_cli, unavailable, wire};
use crate::doctor::Fix;

const SLOTS: u64 = 16384;

/// A line of `CLUSTER NODES`: id, address, flags, master, ping, pong, epoch, link, slots.
struct Node {
    id: String,
    address: Address,
    is_master: bool,
    has_failed: bool,
    /// It has failed, or does not answer the node that was asked.
    is_away: bool,
    follows: String,
    has_slots: bool,
}

/// Asks the first node that answers; answers where the masters are.
pub(super) async fn examine(
    settings: &Settings,
    clock: &Arc<dyn Clock>,
    checkup: &mut Checkup,
) -> Result<Vec<Address>> {
    let mut failure = None;
    for address in &settings.addresses {
        match ask(settings, clock, address).await {
            Ok((info, nodes)) => {
                judge(settings, address, &info, &nodes, checkup);
                let masters = nodes.into_iter().filter(|node| node.is_master && node.has_slots && !node.has_failed);
                return Ok(masters.map(|node| node.address).collect());
            }
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| unavailable("no node of the Redis cluster")))
}

async fn ask(
    settings: &Settings,
    clock: &Arc<dyn Clock>,
    address: &Address,
) -> Result<(BTreeMap<String, String>, Vec<Node>)> {
    let mut server = Server::open(settings, clock, address.clone()).await?;
    let mut told = Vec::new();
    for question in ["INFO", "NODES"] {
        let answer = server.ask(redis::cmd("CLUSTER").arg(question)).await?;
        let answer = answer.map_err(|error| super::super::error::of_command(&error))?;
        told.push(wire::text(&answer).unwrap_or_default().to_owned());
    }
    let nodes = told.pop().unwrap_or_default();
    let nodes = nodes.lines().filter_map(|line| Node::parse(line, address)).collect();
    Ok((fields(&told.pop().unwrap_or_default()), nodes))
}

fn judge(settings: &Settings, asked: &Address, info: &BTreeMap<String, String>, nodes: &[Node], checkup: &mut Checkup) {
    let field = |name: &str| info.get(name).map_or("?", String::as_str);
    let number = |name: &str| field(name).parse::<u64>().ok();
    let masters: Vec<&Node> = nodes.iter().filter(|node| node.is_master && node.has_slots).collect();
    checkup.fact("cluster", format!("{}, {} nodes, {} masters", field("cluster_state"), nodes.len(), masters.len()));
    let uncovered = SLOTS.saturating_sub(number("cluster_slots_ok").unwrap_or(SLOTS));
    if field("cluster_state") != "ok" || uncovered > 0 {
        checkup.problem(
            format!("the cluster's state is {}, {uncovered} of {SLOTS} slots have no master", field("cluster_state")),
            "names in those slots, or all names, cannot be locked",
            if nodes.iter().any(|node| node.is_master && node.is_away) {
                "start the masters again; to give their slots to others loses what they had".into()
            } else {
                // It asks before each step, whatever its options.
                let fix = redis_cli(settings, asked, &format!("--cluster fix {asked}"));
                Fix::from("give those slots to the masters that are there").run(format!("yes yes | {fix}"))
            },
        );
    }
    for replica in nodes.iter().filter(|node| !node.is_master && node.has_failed) {
        checkup.problem(
            format!("the replica {} has failed", replica.address),
            "a lock that waits for replicas (--min-replicas) may find too few, and its master's failover has fewer to choose from",
            format!(
                "start it again; or, if it is gone for good, let every node forget it: {}",
                redis_cli(settings, asked, &format!("--cluster call {asked} CLUSTER FORGET {}", replica.id))
            ),
        );
    }
    for master in masters {
        let follower = |node: &&Node| node.follows == master.id && !node.is_away;
        if master.has_failed {
            checkup.problem(
                format!("the master {} has failed", master.address),
                "its names cannot be locked until a replica takes over",
                match nodes.iter().find(|node| follower(node)) {
                    Some(replica) => Fix::from("start it again, or let its replica take its place").run(redis_cli(
                        settings,
                        &replica.address,
                        "CLUSTER FAILOVER FORCE",
                    )),
                    None => "start it again".into(),
                },
            );
        } else if !nodes.iter().any(|node| follower(&node)) {
            checkup.advice(
                format!("the master {} has no replica", master.address),
                "when it fails, its names cannot be locked until it is back",
                format!(
                    "start one more server, and let it follow: {}",
                    redis_cli(
                        settings,
                        asked,
                        &format!(
                            "--cluster add-node NEW_HOST:PORT {asked} --cluster-slave --cluster-master-id {}",
                            master.id
                        ),
                    )
                ),
            );
        }
    }
}

impl Node {
    fn parse(line: &str, asked: &Address) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [id, address, flags, follows, ..] = words.as_slice() else { return None };
        // ADDRESS:PORT@BUS[,HOSTNAME]; a node that does not know its own address leaves it out.
        let address = address.split('@').next()?;
        let (host, port) = address.rsplit_once(':')?;
        let host = if host.is_empty() { &asked.host } else { host.trim_matches(['[', ']']) };
        let flag = |wanted: &str| flags.split(',').any(|flag| flag == wanted);
        Some(Self {
            id: (*id).to_owned(),
            address: Address { host: host.to_owned(), port: port.parse().ok()? },
            is_master: flag("master"),
            has_failed: flag("fail"),
            is_away: flag("fail") || flag("fail?"),
            follows: (*follows).to_owned(),
            has_slots: words.len() > 8,
        })
    }
}
