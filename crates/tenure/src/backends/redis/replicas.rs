//! How many replicas a master has, those that are away included: what a majority is counted of.
//!
//! A master itself only knows those that are connected now, so its count shrinks with the very failure that a majority
//! is asked for against. Sentinels and cluster nodes keep replicas that are down; for a lone server the URL says it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use super::node::{Node, unavailable};
use super::place::sentinel_command;
use super::url::{Settings, Topology};
use super::{info_field, wire};
use crate::backend::MAJORITY_OF_WHAT;
use crate::clock::{Clock, Moment};
use crate::error::{Certainty, Error, ErrorKind, Result};

/// How long a count is used before the master is asked again.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The replicas of one master, as far as they were counted.
#[derive(Default)]
pub(super) struct Total {
    count: AtomicU64,
    looked: AtomicU64,
}

impl Total {
    /// How many replicas a majority needs: with the master, more than half of all.
    pub(super) async fn majority(&self, node: &Arc<Node>, settings: &Settings, clock: &dyn Clock) -> Result<u64> {
        let (now, looked) = (clock.now(), self.looked.load(Ordering::Acquire));
        if looked == 0 || now.since(Moment(looked)) >= LOOK_EVERY {
            self.count.store(self.look(node, settings).await?, Ordering::Release);
            self.looked.store(now.as_micros(), Ordering::Release);
        }
        match self.count.load(Ordering::Acquire) {
            0 => Err(refused(ErrorKind::Replicas, "a majority of replicas is asked for, and Redis has none")),
            total => Ok(total.div_ceil(2)),
        }
    }

    async fn look(&self, node: &Arc<Node>, settings: &Settings) -> Result<u64> {
        let before = self.count.load(Ordering::Acquire);
        match &settings.topology {
            Topology::Single | Topology::Fleet => {
                settings.replicas.ok_or_else(|| refused(ErrorKind::Invalid, MAJORITY_OF_WHAT))
            }
            Topology::Sentinel { service } => {
                let known = if before == 0 { known_to_sentinels(settings, service).await? } else { before };
                // Those that have come since; none is taken off before this client ends.
                Ok(known.max(connected(node).await?))
            }
            Topology::Cluster => {
                let mut command = redis::cmd("CLUSTER");
                command.arg("NODES");
                let told = node.command(command).await?;
                let count = wire::text(&told).and_then(in_cluster);
                count.ok_or_else(|| unavailable("the server of this name is no master of the cluster any more"))
            }
        }
    }
}

fn refused(kind: ErrorKind, message: &str) -> Error {
    Error::new(kind, message).with_certainty(Certainty::NotApplied)
}

async fn connected(node: &Arc<Node>) -> Result<u64> {
    let mut command = redis::cmd("INFO");
    command.arg("replication");
    let info = node.command(command).await?;
    Ok(wire::text(&info).and_then(|info| info_field(info, "connected_slaves")?.parse().ok()).unwrap_or(0))
}

/// The most replicas that any sentinel of the URL knows of: it keeps those that are down until `SENTINEL RESET`.
pub(super) async fn known_to_sentinels(settings: &Settings, service: &str) -> Result<u64> {
    let mut command = redis::cmd("SENTINEL");
    command.arg("MASTER").arg(service);
    let asked = settings.addresses.iter().map(|sentinel| sentinel_command(settings, sentinel, &command));
    let told = join_all(asked).await.into_iter().filter_map(|answer| {
        let Ok(Value::Array(fields)) = answer else { return None };
        let count = fields.chunks_exact(2).find(|pair| wire::text(&pair[0]) == Some("num-slaves"));
        count.and_then(|pair| wire::number(&pair[1]))
    });
    told.max().ok_or_else(|| unavailable("no sentinel says how many replicas there are"))
}

/// The replicas of the master that answered `CLUSTER NODES`; none if it is no master.
fn in_cluster(nodes: &str) -> Option<u64> {
    let nodes: Vec<Vec<&str>> = nodes.lines().map(|line| line.split(' ').collect()).collect();
    let flag =
        |node: &[&str], flags: &[&str]| node.get(2).is_some_and(|own| own.split(',').any(|flag| flags.contains(&flag)));
    let own = nodes.iter().find(|node| flag(node, &["myself"]) && flag(node, &["master"]))?.first()?;
    let counts = |node: &&Vec<&str>| {
        let follows = flag(node, &["slave"]) && node.get(3) == Some(own);
        // It was the master of some of these slots before a failover, maybe of ours, and comes back as a replica.
        let replaced = flag(node, &["master"]) && flag(node, &["fail", "fail?"]) && node.len() <= 8;
        follows || replaced
    };
    u64::try_from(nodes.iter().filter(counts).count()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: &str = "\
a 10.0.0.1:6379@16379 myself,master - 0 0 1 connected 0-8191
b 10.0.0.2:6379@16379 master - 0 0 2 connected 8192-16383
c 10.0.0.3:6379@16379 slave a 0 0 1 connected
d 10.0.0.4:6379@16379,host slave,fail a 0 0 1 disconnected
e 10.0.0.5:6379@16379 slave b 0 0 2 connected
";

    #[test]
    fn a_cluster_counts_the_replicas_of_this_master_those_that_are_down_included() {
        assert_eq!(in_cluster(NODES), Some(2));
        assert_eq!(
            in_cluster(&NODES.replace("myself,", "").replace("master - 0 0 2", "myself,master - 0 0 2")),
            Some(1)
        );
        let replaced = format!("{NODES}f 10.0.0.6:6379@16379 master,fail - 0 0 3 disconnected\n");
        assert_eq!(in_cluster(&replaced), Some(3), "a master that was replaced");
        let spare = format!("{NODES}f 10.0.0.6:6379@16379 master - 0 0 3 connected\n");
        assert_eq!(in_cluster(&spare), Some(2), "a master without slots");
        assert_eq!(in_cluster(&NODES.replace("myself,master", "myself,slave")), None);
        assert_eq!(in_cluster(""), None);
    }
}
