//! What makes locks unsafe or slow in this etcd.

use std::time::Duration;

use super::desk::Desk;
use super::error::in_words;
use super::link::Link;
use super::versions::{loses_leases, numbers};
use super::wire::{MembersResponse, StatusResponse};
use crate::clock::Clock;
use crate::doctor::{Checkup, Fix};
use crate::error::{ErrorKind, Result};

/// How many round trips are measured; the middle one is told.
const PINGS: usize = 11;
/// A disk that takes longer than this is too slow for etcd.
const SLOW: Duration = Duration::from_millis(50);
/// What etcd takes by default.
const QUOTA: i64 = 2 << 30;
const MEBI: i64 = 1 << 20;

/// # Cancel safety
///
/// Cancel safe: at worst a lease of a second is left.
pub(super) async fn examine(desk: &Desk, clock: &dyn Clock) -> Result<Checkup> {
    let mut checkup = Checkup::default();
    let members = members(desk, &mut checkup).await;
    clusters(&members, &mut checkup);
    let answered = members.iter().filter_map(|(address, status)| Some((address.as_str(), status.as_ref().ok()?)));
    let answered: Vec<(&str, &StatusResponse)> = answered.collect();
    versions(&answered, &mut checkup);
    for (address, status) in &answered {
        space(address, status, &mut checkup);
    }
    let link = match desk.road.link().await {
        Ok(link) => link,
        // What the user may not do has nothing to do with the members' health.
        Err(error) if error.kind() == ErrorKind::Denied || members.iter().all(|(_, status)| status.is_err()) => {
            return Err(error);
        }
        Err(error) => {
            checkup.problem(
                format!("no member answers for the cluster: {error}"),
                "nothing can be locked or renewed, and leases are lost at their deadlines",
                "start members until more than half of them run and reach each other; an election takes a second or two",
            );
            return Ok(checkup);
        }
    };
    quorum(&link, &members, &mut checkup).await;
    alarms(desk, &link, &mut checkup).await;
    times(desk, clock, &mut checkup).await?;
    floor(desk, &mut checkup).await;
    Ok(checkup)
}

/// Members of different clusters know nothing of each other's locks.
fn clusters(members: &[(String, std::result::Result<StatusResponse, String>)], checkup: &mut Checkup) {
    let told = members.iter().filter_map(|(address, status)| Some((address, status.as_ref().ok()?.header?.cluster_id)));
    let told: Vec<(&String, u64)> = told.collect();
    if let Some((first, cluster)) = told.first()
        && let Some((other, _)) = told.iter().find(|(_, other)| other != cluster)
    {
        checkup.problem(
            format!("{first} and {other} belong to different clusters"),
            "clients that use one of them and clients that use the other may hold the same name at once",
            "name the members of one cluster only",
        );
    }
}

/// Every member the URL names, asked by itself.
async fn members(desk: &Desk, checkup: &mut Checkup) -> Vec<(String, std::result::Result<StatusResponse, String>)> {
    let asked = desk.statuses().await.into_iter();
    let members: Vec<_> = asked.map(|(address, status)| (address, status.map_err(|it| in_words(&it)))).collect();
    for (address, status) in &members {
        match status {
            Ok(status) => {
                let leads = status.header.is_some_and(|header| header.member_id == status.leader);
                let role = if status.leader == 0 {
                    "without a leader"
                } else if status.is_learner {
                    "learner"
                } else if leads {
                    "leader"
                } else {
                    "follower"
                };
                checkup.fact(
                    format!("member {address}"),
                    format!("{role}, etcd {}, term {}", status.version, status.raft_term),
                );
            }
            Err(error) => checkup.problem(
                format!("the member {address} does not answer: {error}"),
                "with too few members nothing can be locked or renewed",
                "look at its log; correct the URL if it has moved",
            ),
        }
    }
    members
}

async fn quorum(link: &Link, asked: &[(String, std::result::Result<StatusResponse, String>)], checkup: &mut Checkup) {
    let Ok(MembersResponse { members, .. }) = link.members().await else {
        checkup.fact("members", "not told (the user may not ask)");
        return;
    };
    let voters = members.iter().filter(|member| !member.is_learner).count();
    checkup.fact("members", format!("{voters} with a vote, {} needed", voters / 2 + 1));
    if voters == 1 {
        checkup.advice(
            "the cluster has one member",
            "while it is down nothing can be locked, and a disk that is lost takes all locks with it",
            "run three or five members",
        );
    }
    if asked.len() < voters {
        checkup.advice(
            format!("the URL names {} of {voters} members", asked.len()),
            "should those fail, the others are not asked",
            format!(
                "name them all: {}",
                members
                    .iter()
                    .flat_map(|member| &member.client_urls)
                    .map(|url| url.split_once("://").map_or(url.as_str(), |(_, address)| address))
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        );
    }
}

/// Members whose version is too old, or known to lose leases: each kind is told once.
fn versions(members: &[(&str, &StatusResponse)], checkup: &mut Checkup) {
    let those = |bad: fn((u32, u32, u32)) -> bool| {
        let bad = |status: &StatusResponse| numbers(&status.version).is_some_and(bad);
        let of = members.iter().filter(|(_, status)| bad(status));
        of.map(|(address, status)| format!("{address} (etcd {})", status.version)).collect::<Vec<_>>().join(", ")
    };
    let old = those(|version| version < (3, 4, 0));
    if !old.is_empty() {
        checkup.problem(
            format!("too old: {old}"),
            "tenure needs 3.4: watches whose numbers the client chooses",
            "upgrade etcd",
        );
    }
    let losing = those(|version| version >= (3, 4, 0) && loses_leases(version));
    if !losing.is_empty() {
        checkup.problem(
            format!(
                "a leader that stands still (its process, its machine or its disk) and goes on may revoke leases that are renewed (etcd#15247): {losing}"
            ),
            "a lock can have two holders though both renew it: the first is told as soon as etcd has deleted its key, and until then only a resource that compares tokens is safe",
            "upgrade to 3.4.31, 3.5.13 or later",
        );
    }
}

fn space(address: &str, status: &StatusResponse, checkup: &mut Checkup) {
    checkup.fact(format!("database of {address}"), format!("{} MiB", status.db_size / MEBI));
    if status.db_size > QUOTA * 8 / 10 {
        checkup.advice(
            format!("the database of {address} has {} MiB", status.db_size / MEBI),
            "at its quota (2 GiB unless --quota-backend-bytes says otherwise) etcd takes no more writes: nothing can be locked",
            "compact and defragment it; switch on --auto-compaction-retention",
        );
    }
    for error in &status.errors {
        checkup.problem(
            format!("{address} tells of an error: {error}"),
            "locks may be refused or lost",
            Fix::from("see what it says").run(etcdctl(address, "endpoint status")).run(etcdctl(address, "alarm list")),
        );
    }
}

/// A call of etcd's own command that reaches this member, but for its password and certificates.
fn etcdctl(address: &str, words: &str) -> String {
    format!("ETCDCTL_API=3 etcdctl --endpoints={address} {words}")
}

async fn alarms(desk: &Desk, link: &Link, checkup: &mut Checkup) {
    let Ok(told) = link.alarms().await else { return };
    let all: Vec<&str> = desk.road.settings.members.iter().map(|member| member.address.as_str()).collect();
    let [defrag, disarm, list] = ["defrag", "alarm disarm", "alarm list"].map(|words| etcdctl(&all.join(","), words));
    for alarm in told.alarms {
        let (what, fix) = match alarm.kind {
            1 => (
                "has no space left",
                Fix::from("compact it (etcdctl compact REVISION), give the room back, and let it write again")
                    .run(defrag.clone())
                    .run(disarm.clone()),
            ),
            2 => ("has corrupt data", Fix::from("replace the member, and then let it write again (alarm disarm)")),
            _ => ("raised an alarm", Fix::from("see which").run(list.clone())),
        };
        checkup.problem(
            format!("the member {:x} {what}", alarm.member),
            "etcd refuses to write: nothing can be locked",
            fix,
        );
    }
}

async fn times(desk: &Desk, clock: &dyn Clock, checkup: &mut Checkup) -> Result<()> {
    let link = desk.road.link().await?;
    let mut reads = Vec::new();
    for _ in 0..PINGS {
        let begun = clock.now();
        desk.road.judged(&link, link.look().await)?;
        reads.push(clock.now().since(begun));
    }
    reads.sort_unstable();
    let middle = reads.get(PINGS / 2).copied().unwrap_or_default();
    checkup
        .fact("round trip", format!("{:.2} ms (the middle of {PINGS} linearizable reads)", middle.as_secs_f64() * 1e3));
    if middle > SLOW {
        checkup.advice(
            format!("a read takes {:.0} ms", middle.as_secs_f64() * 1e3),
            "every acquire and release takes a write, which is slower still",
            "look at disk (wal_fsync_duration) and network between the members",
        );
    }
    Ok(())
}

/// The shortest lease this etcd keeps.
async fn floor(desk: &Desk, checkup: &mut Checkup) {
    let Ok(granted) = desk.road.ask(|link| async move { link.grant(1).await }).await else { return };
    let id = granted.id;
    let _ = desk.road.ask(|link| async move { link.revoke(id).await }).await;
    checkup.fact("shortest ttl", format!("{} s (1.5 times the election timeout, in whole seconds)", granted.ttl));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(version_told: &str) -> usize {
        let mut checkup = Checkup::default();
        let status = StatusResponse { version: version_told.to_owned(), ..StatusResponse::default() };
        versions(&[("a:2379", &status), ("b:2379", &status)], &mut checkup);
        checkup.findings.len()
    }

    #[test]
    fn versions_that_lose_leases_are_named() {
        for bad in ["3.3.27", "3.4.23", "3.4.30", "3.5.0", "3.5.12"] {
            assert_eq!(findings(bad), 1, "{bad}");
        }
        for good in ["3.4.31", "3.5.13", "3.6.0", "3.6.0-rc.1", "odd"] {
            assert_eq!(findings(good), 0, "{good}");
        }
    }
}
