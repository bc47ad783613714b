//! The checks of one server: what it told goes in, facts and findings come out. Nothing here asks anything.

use std::time::Duration;

use super::super::url::{Address, Layout, Settings, Topology};
use super::server::{SETTINGS, Seen};
use super::{administrator_cli, redis_cli, replicas};
use crate::doctor::{Checkup, Fix};

/// A round trip that every acquire waits for; beyond it locks feel slow.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(5);
/// How far the server's clock may be from ours.
pub(in crate::backends) const SKEW_MAX_US: i64 = 1_000_000;
/// From how many percent on something is nearly full.
const NEARLY_FULL: u64 = 90;
/// From here to there the time after which a script counts as slow is nothing odd (milliseconds).
const SLOW_SCRIPT: std::ops::RangeInclusive<i64> = 100..=60_000;

pub(super) fn examine(seen: &Seen, settings: &Settings, checkup: &mut Checkup) {
    let look = Look { seen, settings };
    look.facts(checkup);
    look.anywhere(checkup);
    look.persistence(checkup);
    look.replication(checkup);
    look.coverage(checkup);
    look.speed(checkup);
    look.clock(checkup);
}

/// One server, and the URL it was reached by.
pub(in crate::backends) struct Look<'a> {
    pub(in crate::backends) seen: &'a Seen,
    pub(in crate::backends) settings: &'a Settings,
}

impl Look<'_> {
    /// What is wrong wherever it is, alone or one of several.
    pub(in crate::backends) fn anywhere(&self, checkup: &mut Checkup) {
        self.hidden(checkup);
        self.eviction(checkup);
        self.memory(checkup);
        self.disk(checkup);
        self.starved(checkup);
        self.connections(checkup);
        self.scripts(checkup);
        self.access(checkup);
    }

    pub(in crate::backends) fn cli(&self, words: &str) -> String {
        self.cli_of(&self.seen.address, words)
    }

    fn cli_of(&self, address: &Address, words: &str) -> String {
        let refused = self.seen.config_refused.is_some() || self.seen.info_refused.is_some();
        let cli = if refused { administrator_cli } else { redis_cli };
        cli(self.settings, address, words)
    }

    /// Changes a setting, and keeps it.
    pub(in crate::backends) fn set(&self, name: &str, value: &str) -> Fix {
        let fix = Fix::from(format!("set {name} to {value}, now and {}", self.file()));
        self.kept(fix.run(self.cli(&format!("CONFIG SET {name} {value}"))))
    }

    /// Whether the server was started without a file of settings: it refuses to keep what is changed then.
    fn has_no_file(&self) -> bool {
        self.seen.info("config_file").is_some_and(str::is_empty)
    }

    /// Where its settings are kept, in words.
    fn file(&self) -> &'static str {
        match self.has_no_file() {
            true => "in the command that starts the server, which has no redis.conf",
            false => "in redis.conf",
        }
    }

    /// Keeps what was changed over a restart, where there is a file for it.
    fn kept(&self, fix: Fix) -> Fix {
        if self.has_no_file() { fix } else { fix.run(self.cli("CONFIG REWRITE")) }
    }

    /// What is left when the store has forgotten a lock that is held.
    fn protection(&self) -> &'static str {
        match self.settings.layout {
            _ if self.settings.topology == Topology::Fleet => {
                "a lock that was counted here is then on fewer nodes than was counted"
            }
            Layout::Native => "then two may hold at once, and only the token protects",
            _ => "then two may hold at once, and this layout has no token to protect",
        }
    }

    fn facts(&self, checkup: &mut Checkup) {
        let seen = self.seen;
        let mut fact = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                checkup.fact(name, value);
            }
        };
        fact("server", Some(seen.address.to_string()));
        fact("version", seen.info("redis_version").map(ToOwned::to_owned));
        fact(
            "layout",
            Some(
                match self.settings.layout {
                    Layout::Native => "native",
                    Layout::Plain => "plain (no queue, no tokens)",
                    Layout::Redisson => "redisson (no queue, no tokens)",
                }
                .to_owned(),
            ),
        );
        fact("round trip", Some(format!("{} (median)", milliseconds(seen.round_trip))));
        fact("clock", seen.ahead.map(|ahead| clock_words(ahead.us, "this machine's")));
        fact("memory", self.memory_words());
        fact("eviction", seen.info("maxmemory_policy").map(ToOwned::to_owned));
        fact("persistence", self.persistence_words());
        fact("replicas", seen.info("connected_slaves").map(ToOwned::to_owned));
        fact(
            "clients",
            seen.number("connected_clients").map(|now| match seen.number_set("maxclients") {
                Some(max) => format!("{now} of {max}"),
                None => now.to_string(),
            }),
        );
    }

    pub(in crate::backends) fn memory_words(&self) -> Option<String> {
        let used = self.seen.number("used_memory")?;
        Some(match self.seen.number("maxmemory") {
            Some(max) if max > 0 => format!("{} of {}", mebibytes(used), mebibytes(max)),
            _ => format!("{}, no limit", mebibytes(used)),
        })
    }

    /// What makes it keep everything it has said yes to.
    pub(in crate::backends) fn write_all(&self) -> Fix {
        let words = format!(
            "set appendonly to yes and appendfsync to always, now and {}: else the next restart neither reads nor writes the \
             append-only file",
            self.file()
        );
        let set = ["CONFIG SET appendonly yes", "CONFIG SET appendfsync always"];
        self.kept(set.iter().fold(Fix::from(words), |fix, words| fix.run(self.cli(words))))
    }

    pub(in crate::backends) fn persistence_words(&self) -> Option<String> {
        let save = self.seen.setting("save");
        Some(match (self.seen.setting("appendonly")?, self.seen.setting("appendfsync")) {
            ("yes", Some(fsync)) => format!("append-only file, fsync {fsync}"),
            ("yes", None) => "append-only file".to_owned(),
            _ if save.is_some_and(|save| !save.is_empty()) => "snapshots only".to_owned(),
            _ if save.is_some() => "none".to_owned(),
            _ => "no append-only file".to_owned(),
        })
    }

    /// What could not be looked at.
    fn hidden(&self, checkup: &mut Checkup) {
        if let Some(refused) = &self.seen.info_refused {
            checkup.advice(
                format!("INFO is not allowed: memory, replicas and version were not looked at ({refused})"),
                "eviction and lost replicas make locks vanish, unseen",
                Fix::from("look as an administrator").run(self.cli("INFO")),
            );
        }
        if let Some(refused) = &self.seen.config_refused {
            let unseen: Vec<&str> = SETTINGS.into_iter().filter(|name| self.seen.setting(name).is_none()).collect();
            checkup.advice(
                format!("CONFIG GET is not allowed: {} were not looked at ({refused})", unseen.join(", ")),
                "what a restart or a failover forgets depends on them",
                unseen.iter().fold(Fix::from("look as an administrator"), |fix, name| {
                    fix.run(self.cli(&format!("CONFIG GET {name}")))
                }),
            );
        }
    }

    fn eviction(&self, checkup: &mut Checkup) {
        let Some(policy) = self.seen.info("maxmemory_policy").filter(|policy| *policy != "noeviction") else { return };
        let fix = self.set("maxmemory-policy", "noeviction");
        if self.seen.number("maxmemory").is_some_and(|max| max > 0) {
            checkup.problem(
                format!("maxmemory-policy is {policy}"),
                format!(
                    "when memory is short, Redis drops keys, locks that are held among them: {}",
                    self.protection()
                ),
                fix,
            );
        } else {
            checkup.advice(
                format!("maxmemory-policy is {policy} (without effect while maxmemory is 0)"),
                "the day somebody sets maxmemory, Redis drops locks that are held",
                fix,
            );
        }
    }

    fn memory(&self, checkup: &mut Checkup) {
        let (Some(used), Some(max)) = (self.seen.number("used_memory"), self.seen.number("maxmemory")) else { return };
        if max > 0 && used.saturating_mul(100) > max.saturating_mul(NEARLY_FULL) {
            checkup.problem(
                format!("memory is nearly full: {} of {}", mebibytes(used), mebibytes(max)),
                "when it is full, Redis refuses new locks and waiters (or evicts held ones)",
                self.set("maxmemory", &(max.max(used) * 2).to_string()).saying("free some, or raise maxmemory"),
            );
        }
    }

    fn persistence(&self, checkup: &mut Checkup) {
        let seen = self.seen;
        let forgets = |what: &str| format!("a restart forgets {what}: {}", self.protection());
        let log = self.write_all();
        match (seen.setting("appendonly"), seen.setting("appendfsync"), seen.setting("save")) {
            (Some("no"), _, Some("")) => {
                checkup.problem("nothing is persisted (appendonly no, save \"\")", forgets("every lock"), log);
            }
            (Some("no"), ..) => checkup.problem(
                "there is no append-only file (appendonly no): at best, snapshots now and then",
                forgets("every lock since the last snapshot"),
                log,
            ),
            (Some("yes"), Some("no"), _) => checkup.problem(
                "the append-only file is not synced (appendfsync no)",
                format!("a crash of its machine forgets up to half a minute of locks: {}", self.protection()),
                self.set("appendfsync", "always"),
            ),
            (Some("yes"), Some("everysec"), _) => checkup.advice(
                "the append-only file is synced once a second (appendfsync everysec)",
                format!("a crash of its machine forgets up to a second or two of locks: {}", self.protection()),
                self.set("appendfsync", "always"),
            ),
            _ => {}
        }
    }

    fn disk(&self, checkup: &mut Checkup) {
        let seen = self.seen;
        let stops = seen.setting("stop-writes-on-bgsave-error") != Some("no");
        let failed = |field| seen.info(field).is_some_and(|status| status != "ok");
        if failed("aof_last_write_status") || (failed("rdb_last_bgsave_status") && stops) {
            checkup.problem(
                "Redis could not write to its disk the last time it tried",
                "it refuses every lock until it can (MISCONF)",
                Fix::from("make room on its disk, see its log, and then let it write").run(self.cli("BGSAVE")),
            );
        }
    }

    /// How many replicas it wants to be in touch with, and how many are.
    fn wanted_replicas(&self) -> Option<(u64, u64)> {
        let replicas = self.seen.number("connected_slaves")?;
        let required = self.seen.number_set("min-replicas-to-write")?;
        Some((required, self.seen.number("min_slaves_good_slaves").unwrap_or(replicas)))
    }

    fn starved(&self, checkup: &mut Checkup) {
        if let Some((required, good)) = self.wanted_replicas().filter(|(required, good)| good < required) {
            checkup.problem(
                format!("{good} of the {required} replicas of min-replicas-to-write are in touch"),
                "Redis refuses every lock until enough are (NOREPLICAS)",
                self.set("min-replicas-to-write", &good.to_string())
                    .saying("bring them back; or want fewer, which gives up what they protect"),
            );
        }
    }

    fn replication(&self, checkup: &mut Checkup) {
        let replicas = self.seen.number("connected_slaves").unwrap_or(0);
        if replicas > 0 && self.wanted_replicas().is_some_and(|(required, _)| required == 0) {
            checkup.advice(
                format!("{replicas} replica{} and min-replicas-to-write 0", if replicas == 1 { "" } else { "s" }),
                format!(
                    "a master cut off from its replicas goes on granting, and a failover forgets what they had not \
                     yet: {}. `tenure run --min-replicas majority` waits for them as well{}",
                    self.protection(),
                    if self.settings.topology == Topology::Single && self.settings.replicas.is_none() {
                        format!(", with ?replicas={replicas} in the URL if that is how many there should be")
                    } else {
                        String::new()
                    }
                ),
                self.wait_for_a_replica(),
            );
        }
    }

    /// Also for the replicas, any of which may become the master.
    fn wait_for_a_replica(&self) -> Fix {
        let servers = [self.seen.address.clone()].into_iter().chain(replicas::addresses(self.seen));
        let words = ["CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-max-lag 10", "CONFIG REWRITE"];
        servers.fold(
            Fix::from(
                "let it write only while a replica has heard of it, now and in redis.conf; so too each replica, should it \
                 become the master",
            ),
            |fix, server| words.iter().fold(fix, |fix, words| fix.run(self.cli_of(&server, words))),
        )
    }

    fn coverage(&self, checkup: &mut Checkup) {
        if self.settings.topology == Topology::Cluster
            && self.seen.setting("cluster-require-full-coverage") == Some("yes")
        {
            checkup.advice(
                "it refuses everything while any other master is gone (cluster-require-full-coverage yes)",
                "until a replica has the place of that one, no lease in the whole cluster can be renewed: shorter ones \
                 than that are lost",
                self.set("cluster-require-full-coverage", "no"),
            );
        }
    }

    fn speed(&self, checkup: &mut Checkup) {
        if self.seen.round_trip > ROUND_TRIP_MAX {
            checkup.advice(
                format!("a round trip takes {}", milliseconds(self.seen.round_trip)),
                "every acquire, renewal and release takes at least one",
                Fix::from("run tenure nearer to the server, or look for what slows it").run(self.cli("SLOWLOG GET 10")),
            );
        }
    }

    fn clock(&self, checkup: &mut Checkup) {
        // A lease compares no clocks of two machines, so this is no danger by itself.
        if let Some(ahead) = self.seen.ahead
            && ahead.us.abs() > SKEW_MAX_US + ahead.doubt_us
        {
            checkup.advice(
                format!("its clock is {}", clock_words(ahead.us, "this machine's")),
                "locks expire and tokens grow by its clock: one of the two is wrong, and a step that sets it right ends \
                 locks early or late",
                "on the server and here: chronyc tracking (or timedatectl), and let NTP slew the clock",
            );
        }
    }

    fn connections(&self, checkup: &mut Checkup) {
        let seen = self.seen;
        if let Some(timeout) = seen.number_set("timeout").filter(|timeout| *timeout > 0) {
            checkup.advice(
                format!("idle connections are closed after {timeout} s (timeout {timeout})"),
                "the next acquire has to connect anew first",
                self.set("timeout", "0"),
            );
        }
        let (Some(now), Some(max)) = (seen.number("connected_clients"), seen.number_set("maxclients")) else { return };
        if now.saturating_mul(100) > max.saturating_mul(NEARLY_FULL) {
            checkup.problem(
                format!("{now} of {max} connections are in use (maxclients)"),
                "beyond it nobody new can lock, and a holder that has to reconnect loses its lease",
                self.set("maxclients", &(max * 2).to_string()),
            );
        }
    }

    fn scripts(&self, checkup: &mut Checkup) {
        let limit = self.seen.setting("lua-time-limit").and_then(|limit| limit.parse::<i64>().ok());
        if let Some(limit) = limit.filter(|limit| !SLOW_SCRIPT.contains(limit)) {
            checkup.advice(
                format!("scripts count as slow after {limit} ms (lua-time-limit, busy-reply-threshold)"),
                "too low, and others' scripts make locks fail with BUSY; none or too high, and a script that hangs hangs \
                 every lock, with nobody told",
                self.set("lua-time-limit", "5000"),
            );
        }
    }

    fn access(&self, checkup: &mut Checkup) {
        let (Some(bind), Some(protected)) = (self.seen.setting("bind"), self.seen.setting("protected-mode")) else {
            return;
        };
        if self.settings.login.password.is_none() && protected == "no" && !is_loopback(bind) {
            checkup.advice(
                format!("anybody who reaches it gets in: no password, protected-mode no, bind {bind:?}"),
                "whoever gets in can end any lock, or all of them with FLUSHALL",
                format!(
                    "give it a password, and name that in the URL: {}",
                    self.cli("ACL SETUSER default '>PASSWORD'")
                ),
            );
        }
    }
}

fn is_loopback(bind: &str) -> bool {
    let mut hosts = bind.split_whitespace().map(|host| host.trim_start_matches('-')).peekable();
    hosts.peek().is_some() && hosts.all(|host| host.starts_with("127.") || host == "::1" || host == "localhost")
}

pub(in crate::backends) fn milliseconds(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1000.0)
}

fn mebibytes(bytes: u64) -> String {
    format!("{}.{} MiB", bytes >> 20, ((bytes & 0xf_ffff) * 10) >> 20)
}

/// How far a clock is from another.
pub(in crate::backends) fn clock_words(ahead_us: i64, of: &str) -> String {
    let ms = ahead_us.unsigned_abs() / 1000;
    if ms == 0 {
        return format!("within 1 ms of {of}");
    }
    let shown = if ms < 10_000 { format!("{ms} ms") } else { format!("{} s", ms / 1000) };
    format!("{shown} {} {of}", if ahead_us < 0 { "behind" } else { "ahead of" })
}

#[cfg(test)]
mod tests {
    use super::super::server::Ahead;
    use super::*;
    use crate::doctor::Severity::{self, Advice, Problem};

    const SOUND: &str = "redis_version:7.0.15\nused_memory:1000\nmaxmemory:0\nmaxmemory_policy:noeviction\n\
        connected_slaves:0\nconnected_clients:2\naof_enabled:1\naof_last_write_status:ok\nrdb_last_bgsave_status:ok";

    fn sound() -> Vec<(&'static str, &'static str)> {
        vec![
            ("appendonly", "yes"),
            ("appendfsync", "always"),
            ("save", ""),
            ("min-replicas-to-write", "0"),
            ("timeout", "0"),
            ("maxclients", "10000"),
            ("lua-time-limit", "5000"),
            ("protected-mode", "yes"),
            ("bind", "127.0.0.1 -::1"),
        ]
    }

    fn found(seen: &Seen) -> Vec<(Severity, String)> {
        let settings = Settings::parse("redis://127.0.0.1").unwrap();
        let mut checkup = Checkup::default();
        examine(seen, &settings, &mut checkup);
        assert!(checkup.findings.iter().all(|finding| !finding.why.is_empty() && !finding.fix.is_empty()));
        checkup.findings.into_iter().map(|finding| (finding.severity, finding.what)).collect()
    }

    #[test]
    fn a_sound_server_has_no_findings() {
        assert_eq!(found(&Seen::of(SOUND, &sound())), []);
    }

    #[test]
    fn each_bad_setting_is_found_and_no_other() {
        for (name, value, severity, part) in [
            ("appendonly", "no", Problem, "nothing is persisted"),
            ("appendfsync", "no", Problem, "appendfsync no"),
            ("appendfsync", "everysec", Advice, "appendfsync everysec"),
            ("min-replicas-to-write", "1", Problem, "0 of the 1 replicas"),
            ("timeout", "60", Advice, "timeout 60"),
            ("maxclients", "2", Problem, "2 of 2 connections"),
            ("lua-time-limit", "0", Advice, "0 ms"),
        ] {
            let mut config = sound();
            config.retain(|(setting, _)| *setting != name);
            config.push((name, value));
            let found = found(&Seen::of(SOUND, &config));
            assert_eq!(found.len(), 1, "{name}: {found:?}");
            assert!(found[0].0 == severity && found[0].1.contains(part), "{found:?}");
        }
    }

    #[test]
    fn each_bad_fact_is_found_and_no_other() {
        for (from, to, severity, part) in [
            ("maxmemory_policy:noeviction", "maxmemory_policy:volatile-lru", Advice, "volatile-lru"),
            (
                "maxmemory:0\nmaxmemory_policy:noeviction",
                "maxmemory:9000\nmaxmemory_policy:allkeys-lru",
                Problem,
                "allkeys-lru",
            ),
            ("maxmemory:0", "maxmemory:1100", Problem, "memory is nearly full"),
            ("connected_slaves:0", "connected_slaves:2", Advice, "2 replicas and min-replicas-to-write 0"),
            ("aof_last_write_status:ok", "aof_last_write_status:err", Problem, "could not write to its disk"),
        ] {
            let found = found(&Seen::of(&SOUND.replace(from, to), &sound()));
            assert_eq!(found.len(), 1, "{to}: {found:?}");
            assert!(found[0].0 == severity && found[0].1.contains(part), "{found:?}");
        }
    }

    #[test]
    fn an_open_door_a_slow_line_and_a_wrong_clock_are_found() {
        let mut open = sound();
        open.retain(|(setting, _)| !["protected-mode", "bind"].contains(setting));
        open.extend([("protected-mode", "no"), ("bind", "* -::*")]);
        let mut seen = Seen::of(SOUND, &open);
        seen.round_trip = Duration::from_millis(6);
        seen.ahead = Some(Ahead { us: -1_500_000, doubt_us: 3_000 });
        let found = found(&seen);
        for part in ["anybody who reaches it", "6.00 ms", "1500 ms behind this machine's"] {
            assert!(
                found.iter().any(|(severity, what)| *severity == Advice && what.contains(part)),
                "{part}: {found:?}"
            );
        }
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn what_is_forbidden_is_said_and_not_guessed() {
        let mut seen = Seen::of(SOUND, &[]);
        seen.config_refused = Some("NOPERM".to_owned());
        let found = found(&seen);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].1.contains("appendfsync") && !found[0].1.contains("appendonly"), "INFO knows that: {found:?}");
    }
}
