//! The replicas a master reports: whether they follow, and whether their clocks agree with its own.

use std::sync::Arc;

use futures_util::future::join_all;

use super::super::url::{Address, Settings};
use super::checks::{SKEW_MAX_US, clock_words};
use super::redis_cli;
use super::server::{Ahead, Seen, Server};
use crate::clock::Clock;
use crate::doctor::{Checkup, Fix};

/// How many seconds a replica may be silent.
const LAG_MAX: u64 = 5;

/// Compares the replicas that are connected with how many there should be, where that is known.
pub(super) fn missing(seen: &Seen, settings: &Settings, total: Option<u64>, checkup: &mut Checkup) {
    let connected = seen.number("connected_slaves").unwrap_or(0);
    let Some(total) = total else { return };
    if connected < total {
        checkup.problem(
            format!("{connected} of {total} replicas are connected"),
            "a lock that waits for replicas (--min-replicas) may find too few, and a failover has fewer to choose from",
            format!(
                "start the others again, each with the line `replicaof {} {}` in its redis.conf",
                seen.address.host, seen.address.port
            ),
        );
    }
    if connected > total && settings.replicas.is_some() {
        checkup.problem(
            format!("the URL says replicas={total}, and {connected} are connected"),
            "--min-replicas majority is then less than a majority of them",
            format!("write replicas={connected} in the URL"),
        );
    }
}

pub(super) async fn examine(seen: &Seen, settings: &Settings, clock: &Arc<dyn Clock>, checkup: &mut Checkup) {
    let mut following = Vec::new();
    for number in 0..seen.number("connected_slaves").unwrap_or(0) {
        let Some(replica) = seen.info(&format!("slave{number}")).and_then(Replica::parse) else { continue };
        if replica.state != "online" || replica.lag > LAG_MAX {
            checkup.advice(
                format!("the replica {} lags ({}, silent for {} s)", replica.address, replica.state, replica.lag),
                "a failover to it forgets the locks it has not heard of",
                Fix::from("see its log, and whether its link to its master is up").run(redis_cli(
                    settings,
                    &replica.address,
                    "INFO replication",
                )),
            );
        }
        following.push(replica.address);
    }
    let looks = following.into_iter().map(|address| async {
        let ahead = async { Server::open(settings, clock, address.clone()).await?.ahead().await };
        let ahead = ahead.await;
        (address, ahead.ok().flatten())
    });
    for (address, theirs) in join_all(looks).await {
        let apart = theirs
            .zip(seen.ahead)
            .map(|(theirs, ours)| Ahead { us: theirs.us - ours.us, doubt_us: theirs.doubt_us + ours.doubt_us });
        let Some(apart) = apart else {
            checkup.fact(format!("replica {address}"), "its clock cannot be read from here");
            continue;
        };
        checkup.fact(format!("replica {address}"), format!("clock {}", clock_words(apart.us, "its master's")));
        if apart.us.abs() > SKEW_MAX_US + apart.doubt_us {
            checkup.problem(
                format!("the clock of the replica {address} is {}", clock_words(apart.us, "its master's")),
                "after a failover to it locks expire early or late, and tokens may fall behind those already given",
                "on both machines: chronyc tracking (or timedatectl), and let NTP set them right",
            );
        }
    }
}

/// Where the replicas are that follow a master.
pub(super) fn addresses(seen: &Seen) -> impl Iterator<Item = Address> {
    let replicas = 0..seen.number("connected_slaves").unwrap_or(0);
    replicas.filter_map(|number| Some(Replica::parse(seen.info(&format!("slave{number}"))?)?.address))
}

/// A line of INFO: `ip=…,port=…,state=…,offset=…,lag=…`.
struct Replica {
    address: Address,
    state: String,
    lag: u64,
}

impl Replica {
    fn parse(line: &str) -> Option<Self> {
        let field = |name: &str| line.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        let address = Address { host: field("ip")?.to_owned(), port: field("port")?.parse().ok()? };
        Some(Self { address, state: field("state")?.to_owned(), lag: field("lag")?.parse().ok()? })
    }
}
