//! What makes locks unsafe or slow in this etcd.

use std::time::Duration;

use super::desk::Desk;
use super::error::in_words;
use super::link::Link;
use super::url::Settings;
use super::versions::{loses_leases, numbers};
use super::wire::{Alarm, Answered as _, MembersResponse, RangeRequest, StatusResponse};
use crate::clock::Clock;
use crate::doctor::{Checkup, Fix, quoted};
use crate::error::{ErrorKind, Result};

/// How many round trips are measured; the middle one is told.
const PINGS: usize = 11;
/// A disk that takes longer than this is too slow for etcd.
const SLOW: Duration = Duration::from_millis(50);
/// What etcd takes by default.
const QUOTA: i64 = 2 << 30;
const MEBI: i64 = 1 << 20;
/// So many revisions without a compaction are more than a trial leaves behind.
const HISTORY_MAX: i64 = 100_000;
/// The kinds of alarms, and what an error of a member's status calls them.
const NO_SPACE: (i32, &str) = (1, "alarm:NOSPACE");
const CORRUPT: (i32, &str) = (2, "alarm:CORRUPT");

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
        space(&desk.road.settings, address, status, &mut checkup);
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
    history(desk, &link, &mut checkup).await;
    alarms(&desk.road.settings, &link, &answered, &mut checkup).await;
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

fn space(settings: &Settings, address: &str, status: &StatusResponse, checkup: &mut Checkup) {
    checkup.fact(format!("database of {address}"), format!("{} MiB", status.db_size / MEBI));
    if status.db_size > QUOTA * 8 / 10 {
        checkup.advice(
            format!("the database of {address} has {} MiB", status.db_size / MEBI),
            "at its quota (2 GiB unless --quota-backend-bytes says otherwise) etcd takes no more writes: nothing can be locked",
            make_room(settings, &[address], status.header.map_or(0, |header| header.revision)).saying(
                "drop old revisions, and give their room back; to have that done, start etcd with \
                 --auto-compaction-retention=1h",
            ),
        );
    }
    for error in status.errors.iter().filter(|error| !error.contains("alarm:")) {
        checkup.problem(format!("{address} tells of an error: {error}"), "locks may be refused or lost", "see its log");
    }
}

/// Whether old revisions are dropped: each lock that is taken or given back and each memo makes a new one.
async fn history(desk: &Desk, link: &Link, checkup: &mut Checkup) {
    let first = RangeRequest { key: desk.keys.notes(), revision: 1, ..RangeRequest::default() };
    match link.range(first).await {
        Ok(told) => judge_history(told.header().revision, false, checkup),
        Err(status) if status.message().contains("has been compacted") => judge_history(0, true, checkup),
        Err(_) => {}
    }
}

fn judge_history(revision: i64, compacted: bool, checkup: &mut Checkup) {
    let kept = if compacted { "old ones are dropped".to_owned() } else { format!("all {revision} are kept") };
    checkup.fact("revisions", kept);
    if revision > HISTORY_MAX {
        checkup.advice(
            format!("etcd keeps every change that was ever made, {revision} of them"),
            "each lock and each memo makes some more, and at its quota etcd takes no more writes: nothing can be locked",
            "start every member with --auto-compaction-retention=1h",
        );
    }
}

/// A call of etcd's own command that reaches these members. Where there are users only root may do what it is for; its
/// password is to be in the environment.
fn etcdctl(settings: &Settings, addresses: &[&str], words: &str) -> String {
    let mut line = "ETCDCTL_API=3 ".to_owned();
    if settings.login.is_some() {
        // A shell that has no password says so, and runs nothing.
        line.push_str("ETCDCTL_PASSWORD=\"${ETCDCTL_PASSWORD:?must be the password of root}\" ");
    }
    line.push_str(&format!("etcdctl --endpoints={}", quoted(&addresses.join(","))));
    let mut option = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            line.push_str(&format!(" {name}={}", quoted(value)));
        }
    };
    option("--user", settings.login.as_ref().map(|_| "root"));
    option("--insecure-transport", settings.tls.then_some("false"));
    option("--cacert", settings.files.ca.as_deref());
    option("--cert", settings.files.cert.as_deref());
    option("--key", settings.files.key.as_deref());
    format!("{line} {words}")
}

/// Drops all revisions before this one, and gives their room back.
fn make_room(settings: &Settings, addresses: &[&str], revision: i64) -> Fix {
    Fix::default()
        .run(etcdctl(settings, addresses, &format!("compact {revision}")))
        .run(etcdctl(settings, addresses, "defrag"))
}

async fn alarms(settings: &Settings, link: &Link, answered: &[(&str, &StatusResponse)], checkup: &mut Checkup) {
    // Where there are users only root is told the alarms; but each member tells them with its status.
    let mut raised = link.alarms().await.map(|told| told.alarms).unwrap_or_default();
    raised.extend(answered.iter().flat_map(|(_, status)| &status.errors).filter_map(|error| alarm_of(error)));
    raised.sort_by_key(|alarm| (alarm.kind, alarm.member));
    raised.dedup();
    let revision = answered.iter().filter_map(|(_, status)| status.header).map(|header| header.revision).max();
    judge_alarms(settings, &raised, revision.unwrap_or(0), checkup);
}

/// An alarm as an error of a member's status tells it: `memberID:123 alarm:NOSPACE`.
fn alarm_of(error: &str) -> Option<Alarm> {
    let member = error.split_whitespace().find_map(|word| word.strip_prefix("memberID:"))?.parse().ok()?;
    let (kind, _) = [NO_SPACE, CORRUPT].into_iter().find(|(_, name)| error.contains(name))?;
    Some(Alarm { member, kind })
}

fn judge_alarms(settings: &Settings, raised: &[Alarm], revision: i64, checkup: &mut Checkup) {
    let refuses = "etcd refuses to write: nothing can be locked";
    let of_kind = |kind: i32| {
        let members: Vec<String> =
            raised.iter().filter(|alarm| alarm.kind == kind).map(|alarm| format!("{:x}", alarm.member)).collect();
        (!members.is_empty()).then(|| members.join(", "))
    };
    let all: Vec<&str> = settings.members.iter().map(|member| member.address.as_str()).collect();
    if let Some(members) = of_kind(NO_SPACE.0) {
        let fix = make_room(settings, &all, revision).run(etcdctl(settings, &all, "alarm disarm")).saying(
            "drop old revisions, give their room back, and let it write again; if it is soon full again, remove keys, or \
             start etcd with a larger --quota-backend-bytes",
        );
        checkup.problem(format!("no space left: member {members}"), refuses, fix);
    }
    if let Some(members) = of_kind(CORRUPT.0) {
        let fix =
            "replace the member by one without data (etcdctl member remove, member add); then etcdctl alarm disarm";
        checkup.problem(format!("corrupt data: member {members}"), refuses, fix);
    }
    for alarm in raised.iter().filter(|alarm| ![NO_SPACE.0, CORRUPT.0].contains(&alarm.kind)) {
        let fix = Fix::from("see which").run(etcdctl(settings, &all, "alarm list"));
        checkup.problem(format!("the member {:x} raised an alarm", alarm.member), refuses, fix);
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
    use super::super::wire::Header;
    use super::*;

    fn findings(version_told: &str) -> usize {
        let mut checkup = Checkup::default();
        let status = StatusResponse { version: version_told.to_owned(), ..StatusResponse::default() };
        versions(&[("a:2379", &status), ("b:2379", &status)], &mut checkup);
        checkup.findings.len()
    }

    fn fixes(url: &str, look: impl Fn(&Settings, &mut Checkup)) -> Vec<Vec<String>> {
        let mut checkup = Checkup::default();
        look(&Settings::parse(url).unwrap(), &mut checkup);
        checkup.findings.into_iter().map(|finding| finding.fix_commands).collect()
    }

    #[test]
    fn a_large_database_is_made_smaller_by_commands() {
        let header = Header { revision: 7, ..Header::default() };
        let status = StatusResponse { db_size: QUOTA, header: Some(header), ..StatusResponse::default() };
        let commands = fixes("etcd://u:s3cret@a,b", |settings, checkup| space(settings, "a:2379", &status, checkup));
        let begin = "ETCDCTL_API=3 ETCDCTL_PASSWORD=\"${ETCDCTL_PASSWORD:?must be the password of root}\" etcdctl \
                     --endpoints=a:2379 --user=root";
        assert_eq!(commands, [[format!("{begin} compact 7"), format!("{begin} defrag")]]);
    }

    #[test]
    fn a_long_history_without_a_compaction_is_told() {
        for (revision, compacted, findings) in [(HISTORY_MAX, false, 0), (HISTORY_MAX + 1, false, 1), (0, true, 0)] {
            let mut checkup = Checkup::default();
            judge_history(revision, compacted, &mut checkup);
            assert_eq!(checkup.findings.len(), findings, "{revision}, compacted: {compacted}");
        }
    }

    #[test]
    fn corrupt_data_is_no_matter_of_a_command() {
        let raised = [alarm_of("memberID:26 alarm:CORRUPT ").unwrap()];
        let commands = fixes("etcd://a", |settings, checkup| judge_alarms(settings, &raised, 7, checkup));
        assert_eq!(commands, [Vec::<String>::new()]);
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
