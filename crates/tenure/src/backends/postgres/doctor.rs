//! What makes locks unsafe or slow in this PostgreSQL.

use std::collections::HashMap;
use std::time::Duration;

use super::desk::Desk;
use super::link::Link;
use crate::clock::Clock;
use crate::doctor::Checkup;
use crate::error::Result;

/// The settings that matter to locks.
const SETTINGS: &str = "SELECT name, setting FROM pg_settings WHERE name IN ('server_version', 'fsync', 'full_page_writes', \
    'synchronous_commit', 'synchronous_standby_names', 'max_connections', 'client_connection_check_interval', \
    'default_transaction_isolation', 'superuser_reserved_connections')";
/// How many round trips are measured; the middle one is told.
const PINGS: usize = 11;
/// How far clocks may be apart before it is told.
const SKEW_MAX: Duration = Duration::from_millis(500);
/// The oldest version that has what the statements use.
const VERSION_MIN: u32 = 12;

pub(super) async fn examine(desk: &Desk, hears: bool, clock: &dyn Clock) -> Result<Checkup> {
    let link = desk.link().await?;
    let mut checkup = Checkup::default();
    let settings = settings(&link).await?;
    let setting = |name: &str| settings.get(name).map_or("", String::as_str);
    version(setting("server_version"), &mut checkup);
    durability(&setting, &mut checkup);
    connections(&link, &setting, &mut checkup).await?;
    times(&link, clock, &mut checkup).await?;
    replication(&link, &setting, &mut checkup).await?;
    checkup.fact("waiters hear of their turn", if hears { "at once (LISTEN)" } else { "by asking again and again" });
    if !hears {
        checkup.advice(
            "notifications do not arrive: a pooler of transactions stands between",
            "waiters ask again every 50 ms to 1 s instead of being told",
            "name a direct connection for listening: ?listen=postgres%3A%2F%2FHOST%2FDATABASE",
        );
    }
    if setting("default_transaction_isolation") != "read committed" {
        checkup.advice(
            format!("default_transaction_isolation is {}", setting("default_transaction_isolation")),
            "contended names end in serialization failures, which are retried",
            "ALTER ROLE locker SET default_transaction_isolation = 'read committed'",
        );
    }
    desk.give_back(link);
    Ok(checkup)
}

async fn settings(link: &Link) -> Result<HashMap<String, String>> {
    let rows = link.query(SETTINGS, &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

fn version(told: &str, checkup: &mut Checkup) {
    checkup.fact("version", told);
    let major = told.split(['.', ' ']).next().and_then(|major| major.parse::<u32>().ok());
    if major.is_some_and(|major| major < VERSION_MIN) {
        checkup.problem(
            format!("PostgreSQL {told} is older than {VERSION_MIN}"),
            "statements that tenure uses are not there",
            "upgrade PostgreSQL",
        );
    }
}

fn durability<'a>(setting: &impl Fn(&str) -> &'a str, checkup: &mut Checkup) {
    for (name, why) in [
        ("fsync", "a crash of the machine may lose grants and even damage the tables: two leases may be valid at once"),
        ("full_page_writes", "a crash of the machine may damage the tables"),
    ] {
        if setting(name) == "off" {
            checkup.problem(
                format!("{name} is off"),
                why,
                format!("ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()"),
            );
        }
    }
    checkup.fact("synchronous_commit", setting("synchronous_commit"));
    if setting("synchronous_commit") == "off" {
        checkup.problem(
            "synchronous_commit is off",
            "a crash of the server forgets the grants of its last moments: two leases may be valid at once",
            "ALTER ROLE locker SET synchronous_commit = on",
        );
    }
}

async fn connections<'a>(link: &Link, setting: &impl Fn(&str) -> &'a str, checkup: &mut Checkup) -> Result<()> {
    let rows = link.query("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'", &[]).await?;
    let used: i64 = rows.first().map_or(0, |row| row.get(0));
    let number = |name: &str| setting(name).parse::<i64>().unwrap_or(0);
    let most = number("max_connections") - number("superuser_reserved_connections");
    checkup.fact("connections", format!("{used} of {most}"));
    if most > 0 && used * 10 >= most * 8 {
        checkup.problem(
            format!("{used} of {most} connections are in use"),
            "a client that finds none cannot take, renew or release a lock; each client of tenure needs up to five",
            "raise max_connections, or put a pooler between (?listen= for a direct one)",
        );
    }
    if setting("client_connection_check_interval") == "0" {
        checkup.advice(
            "client_connection_check_interval is 0",
            "the server does not notice that a client has died while a statement of its waits for a row",
            "ALTER SYSTEM SET client_connection_check_interval = '1s'; SELECT pg_reload_conf()",
        );
    }
    Ok(())
}

async fn times(link: &Link, clock: &dyn Clock, checkup: &mut Checkup) -> Result<()> {
    let mut trips = Vec::new();
    let mut skew: Option<(Duration, i128)> = None;
    for _ in 0..PINGS {
        let (began, wall) = (clock.now(), clock.wall_micros());
        let rows = link.query("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint", &[]).await?;
        let trip = clock.now().since(began);
        let theirs: i64 = rows.first().map_or(0, |row| row.get(0));
        let ahead = i128::from(theirs) - i128::from(wall) - i128::try_from(trip.as_micros() / 2).unwrap_or(0);
        if skew.is_none_or(|(best, _)| trip < best) {
            skew = Some((trip, ahead));
        }
        trips.push(trip);
    }
    trips.sort();
    checkup.fact("round trip", format!("{:.2} ms", trips[trips.len() / 2].as_secs_f64() * 1000.0));
    if let Some((_, ahead)) = skew {
        checkup.fact("clock", format!("{:.1} ms ahead of this machine's", ahead as f64 / 1000.0));
        if ahead.unsigned_abs() > SKEW_MAX.as_micros() {
            checkup.advice(
                format!("the server's clock is {:.1} s away from this machine's", ahead as f64 / 1e6),
                "leases do not depend on it, but a clock that is set right later steps: forward, claims end early",
                "let chrony or ntpd keep both clocks",
            );
        }
    }
    Ok(())
}

async fn replication<'a>(link: &Link, setting: &impl Fn(&str) -> &'a str, checkup: &mut Checkup) -> Result<()> {
    let rows = link.query("SELECT count(*) FROM pg_stat_replication", &[]).await?;
    let standbys: i64 = rows.first().map_or(0, |row| row.get(0));
    checkup.fact("standbys", standbys.to_string());
    if standbys > 0 && setting("synchronous_standby_names").is_empty() {
        checkup.advice(
            "standbys follow, but not synchronously",
            "a failover forgets the grants of the last moments: two leases may be valid at once, and only the token protects",
            "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'; SELECT pg_reload_conf()",
        );
    }
    Ok(())
}
