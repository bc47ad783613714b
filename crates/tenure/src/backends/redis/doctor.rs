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
use super::url::{Address, Login, Settings, Topology};
use super::wire;
use crate::clock::Clock;
use crate::doctor::{Checkup, quoted};
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
                    "start it again; if it runs, see its log",
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

/// A `redis-cli` call that reaches this server; the password is to be in its environment.
pub(in crate::backends) fn redis_cli(settings: &Settings, address: &Address, words: &str) -> String {
    call(settings, &as_user(&settings.login), settings.db, address, words)
}

/// The same for what the user of the URL may not do.
fn administrator_cli(settings: &Settings, address: &Address, words: &str) -> String {
    call(settings, &by_login("\"${REDISCLI_USER:?must be an administrator}\""), settings.db, address, words)
}

/// The same for a sentinel, which has logins of its own.
fn sentinel_cli(settings: &Settings, address: &Address, words: &str) -> String {
    call(settings, &as_user(&settings.sentinel_login), 0, address, words)
}

/// `redis-cli`, as a user of this word of a shell. A shell that has no password says so, and runs nothing.
fn by_login(user: &str) -> [String; 2] {
    ["REDISCLI_AUTH=\"${REDISCLI_AUTH:?must be the password}\" redis-cli".to_owned(), format!(" --user {user}")]
}

/// A user, unless the environment names another.
fn or_another(user: &str) -> String {
    let mut word = "\"${REDISCLI_USER:-".to_owned();
    for c in user.chars() {
        if "\\\"$`}".contains(c) {
            word.push('\\');
        }
        word.push(c);
    }
    word + "}\""
}

/// What stands before and after the address.
fn as_user(login: &Login) -> [String; 2] {
    // The user of the URL may look, but perhaps not change anything: another one can be named.
    let [program, user] = by_login(&or_another(login.user.as_deref().unwrap_or_default()));
    match (&login.password, &login.user) {
        (None, _) => ["redis-cli".to_owned(), String::new()],
        (Some(_), None) => [program, String::new()],
        (Some(_), Some(_)) => [program, user],
    }
}

fn call(settings: &Settings, [program, user]: &[String; 2], db: i64, address: &Address, words: &str) -> String {
    let mut line = format!("{program} -h {} -p {}", quoted(&address.host), address.port);
    if db != 0 {
        line.push_str(&format!(" -n {db}"));
    }
    line.push_str(user);
    let files = &settings.files;
    for (option, file) in [("--cacert", &files.ca), ("--cert", &files.cert), ("--key", &files.key)] {
        if let Some(file) = file {
            line.push_str(&format!(" {option} {}", quoted(file)));
        }
    }
    format!("{line}{} {words}", if settings.tls.is_some() { " --tls" } else { "" })
}
