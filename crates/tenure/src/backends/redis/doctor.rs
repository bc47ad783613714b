//! What makes locks unsafe or slow in this Redis, looked for at every server that has locks.
//!
//! Looks over connections of its own, so that what it measures is the server and not our queue. What a server does not
//! let us see (managed ones forbid `CONFIG`) is said, with the command that shows it.

pub(in crate::backends) mod checks;
mod cluster;
mod replicas;
mod sentinels;
pub(in crate::backends) mod server;

use std::sync::Arc;

use futures_util::future::join_all;

use self::server::Server;
use super::node::unavailable;
use super::place::sentinel_command;
use super::replicas::known_to_sentinels;
use super::url::{Address, Settings, Topology};
use super::wire;
use crate::clock::Clock;
use crate::doctor::{Checkup, Fix};
use crate::error::Result;

/// Looks at everything the URL names. An error only if no master could be looked at.
pub(super) async fn examine(settings: Arc<Settings>, clock: Arc<dyn Clock>) -> Result<Checkup> {
    let mut checkup = Checkup::default();
    let masters = match &settings.topology {
        Topology::Single | Topology::Fleet => settings.addresses.clone(),
        Topology::Sentinel { service } => sentinels::examine(&settings, service, &mut checkup).await?,
        Topology::Cluster => cluster::examine(&settings, &clock, &mut checkup).await?,
    };
    let several = masters.len() > 1;
    let looks = masters.into_iter().map(|address| async {
        let look = look_at(&settings, &clock, address.clone(), several).await;
        (address, look)
    });
    let (mut seen, mut failure) = (0, None);
    for (address, look) in join_all(looks).await {
        match look {
            Ok(found) => {
                seen += 1;
                checkup.add(found);
            }
            Err(error) => {
                checkup.problem(
                    format!("the master at {address} cannot be looked at: {error}"),
                    "names that live there cannot be locked",
                    Fix::from("see its log").run(redis_cli(&settings, &address, "PING")),
                );
                failure = Some(error);
            }
        }
    }
    match failure {
        Some(error) if seen == 0 => Err(error),
        _ => Ok(checkup),
    }
}

/// One master and its replicas. Facts of several masters begin with their address.
async fn look_at(settings: &Arc<Settings>, clock: &Arc<dyn Clock>, address: Address, several: bool) -> Result<Checkup> {
    let mut server = Server::open(settings, clock, address).await?;
    let seen = server.look().await?;
    let mut checkup = Checkup::default();
    checks::examine(&seen, settings, &mut checkup);
    let total = match &settings.topology {
        Topology::Sentinel { service } => known_to_sentinels(settings, service).await.ok(),
        _ => settings.replicas,
    };
    replicas::missing(&seen, settings, total, &mut checkup);
    replicas::examine(&seen, settings, clock, &mut checkup).await;
    if several {
        for (name, _) in &mut checkup.facts {
            *name = format!("{} {name}", seen.address);
        }
        for finding in &mut checkup.findings {
            finding.what = format!("{}: {}", seen.address, finding.what);
        }
    }
    Ok(checkup)
}

/// A `redis-cli` call that reaches this server, but for the password.
pub(in crate::backends) fn redis_cli(settings: &Settings, address: &Address, words: &str) -> String {
    let tls = if settings.tls.is_some() { " --tls" } else { "" };
    format!("redis-cli -h {} -p {}{tls} {words}", address.host, address.port)
}
