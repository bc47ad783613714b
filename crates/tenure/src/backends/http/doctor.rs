//! What makes a service unsafe, or hard to reach.

use super::Client;
use crate::doctor::Checkup;
use crate::error::Result;

/// Looks at the service. Its store is looked at where the service runs.
///
/// # Cancel safety
///
/// Cancel safe: it changes nothing.
pub(super) async fn examine(client: &Client) -> Result<Checkup> {
    let mut checkup = Checkup::default();
    let (status, _) = client.link.get("/readyz").await?;
    checkup.fact("service", client.link.shown());
    checkup.fact("caller", if client.caller.is_empty() { "anybody" } else { &client.caller });
    if status != 200 {
        checkup.problem(
            "the service answers, but its store does not answer it",
            "nothing can be locked, renewed or released",
            "look at the store where the service runs: tenure doctor --on the store's URL",
        );
    }
    if !client.link.is_encrypted() && !client.link.hosts().iter().all(|host| is_loopback(host)) {
        checkup.advice(
            "requests go over the network in clear text",
            "whoever reads along has the token and the owners, and can release what others hold",
            "start the service with --tls-cert and --tls-key, and write https:// here",
        );
    }
    Ok(checkup)
}

fn is_loopback(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name == "localhost" || name.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}
