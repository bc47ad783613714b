//! What makes locks unsafe or slow in this PostgreSQL.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::Host;
use tokio_postgres::types::Type;

use super::desk::Desk;
use super::look::Look;
use super::rows::cell;
use super::statements::NOW;
use crate::clock::Clock;
use crate::doctor::{Checkup, Fix, quoted};
use crate::error::Result;

/// The settings that matter to locks.
const SETTINGS: &str = "SELECT name, setting FROM pg_settings WHERE name IN ('server_version', 'fsync', 'full_page_writes', \
    'synchronous_commit', 'synchronous_standby_names', 'max_connections', 'superuser_reserved_connections', 'autovacuum', \
    'default_transaction_isolation', 'statement_timeout')";
/// The rights on the tables, in the order in which they are granted. Of a table that is not there, as that of memos
/// may be, none is missed.
const RIGHTS: &str = "SELECT t.relation, r.privilege FROM (VALUES ('names', 'SELECT'), ('names', 'INSERT'), ('names', 'UPDATE'), \
    ('names', 'DELETE'), ('meta', 'SELECT'), ('meta', 'UPDATE'), ('memos', 'SELECT'), ('memos', 'INSERT'), ('memos', 'UPDATE'), \
    ('memos', 'DELETE')) AS r(relation, privilege), LATERAL (SELECT $1 || '.' || r.relation) AS t(relation) \
    WHERE NOT has_table_privilege(to_regclass(t.relation), r.privilege)";
/// How many round trips are measured; the middle one is told.
const PINGS: usize = 11;
/// How far clocks may be apart before it is told.
const SKEW_MAX: Duration = Duration::from_millis(500);
/// The oldest version that has what the statements use.
const VERSION_MIN: u32 = 12;
/// A shorter limit in milliseconds would end transactions that only wait for others.
const STATEMENT_MIN_MS: i64 = 5_000;

/// What the server is set to, and how to reach it with `psql`.
struct Settings {
    told: HashMap<String, String>,
    psql: String,
}

impl Settings {
    /// Changes what the whole server is set to.
    fn system(&self, words: &str, name: &str, value: &str) -> Fix {
        let set = self.psql(&format!("ALTER SYSTEM SET {name} = {value}"));
        Fix::from(words).run(set).run(self.psql("SELECT pg_reload_conf()"))
    }

    /// A command that has the server do this, but for the password.
    fn psql(&self, sql: &str) -> String {
        format!("{} -c \"{}\"", self.psql, sql.replace(['\\', '"', '$', '`'], ""))
    }

    fn text(&self, name: &str) -> &str {
        self.told.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> i64 {
        self.text(name).parse().unwrap_or(0)
    }
}

/// `psql` for the first server, without a password.
fn psql(config: Option<&Config>) -> String {
    let Some(config) = config else { return "psql".to_owned() };
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(host)) => host.clone(),
        #[cfg(unix)]
        Some(Host::Unix(path)) => path.display().to_string(),
        None => "localhost".to_owned(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let mut words = vec!["psql".to_owned(), "-h".to_owned(), host, "-p".to_owned(), port.to_string()];
    words.extend(config.get_user().into_iter().flat_map(|user| ["-U".to_owned(), user.to_owned()]));
    words.extend(config.get_dbname().into_iter().flat_map(|name| ["-d".to_owned(), name.to_owned()]));
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// # Cancel safety
///
/// Cancel safe: it changes nothing.
pub(super) async fn examine(desk: &Arc<Desk>, hears: bool, clock: &dyn Clock) -> Result<Checkup> {
    let mut look = desk.look().await?;
    let mut checkup = Checkup::default();
    let mut settings = HashMap::new();
    for row in look.query(SETTINGS, &[]).await? {
        settings.insert(cell(&row, 0)?, cell(&row, 1)?);
    }
    let settings = Settings { told: settings, psql: psql(desk.settings.target.hosts.first()) };
    version(settings.text("server_version"), &mut checkup);
    times(&mut look, clock, &mut checkup).await?;
    durability(&settings, &mut checkup);
    standbys(&mut look, &settings, &mut checkup).await?;
    connections(&mut look, &settings, &mut checkup).await?;
    waiting(desk, hears, &mut checkup);
    notifications(&mut look, &settings, &mut checkup).await?;
    upkeep(&settings, &mut checkup);
    rights(&mut look, &desk.settings.schema, &mut checkup).await?;
    Ok(checkup)
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

async fn times(look: &mut Look, clock: &dyn Clock, checkup: &mut Checkup) -> Result<()> {
    let mut trips = Vec::new();
    for _ in 0..PINGS {
        let (began, wall) = (clock.now(), clock.wall_micros());
        let rows = look.query(&format!("SELECT {NOW}"), &[]).await?;
        let trip = clock.now().since(began);
        let theirs: i64 = rows.first().map_or(Ok(0), |row| cell(row, 0))?;
        let ahead = i128::from(theirs) - i128::from(wall) - i128::try_from(trip.as_micros() / 2).unwrap_or(0);
        trips.push((trip, ahead));
    }
    trips.sort();
    // Of the quickest: it says most about when the server looked at its clock.
    let (Some((_, ahead)), Some((middle, _))) = (trips.first(), trips.get(PINGS / 2)) else { return Ok(()) };
    checkup.fact("round trip", format!("{:.2} ms", middle.as_secs_f64() * 1e3));
    let side = if *ahead < 0 { "behind" } else { "ahead of" };
    checkup.fact("clock", format!("{:.1} ms {side} this machine's", ahead.unsigned_abs() as f64 / 1e3));
    if ahead.unsigned_abs() > SKEW_MAX.as_micros() {
        checkup.advice(
            format!("the server's clock is {:.1} s {side} this machine's", ahead.unsigned_abs() as f64 / 1e6),
            "leases do not depend on it, but a clock that is set right later steps: forward, claims end early",
            "let chrony or ntpd keep both clocks",
        );
    }
    Ok(())
}

fn durability(settings: &Settings, checkup: &mut Checkup) {
    for (name, why) in [
        ("fsync", "a crash of the machine loses grants and may damage the tables: two leases may be valid at once"),
        ("full_page_writes", "a crash of the machine may damage the tables"),
    ] {
        if settings.text(name) == "off" {
            checkup.problem(format!("{name} is off"), why, settings.system(&format!("switch {name} on"), name, "on"));
        }
    }
    checkup.fact("synchronous_commit", settings.text("synchronous_commit"));
    if settings.text("synchronous_commit") == "off" {
        checkup.problem(
            "synchronous_commit is off",
            "a crash of the server forgets the grants of its last moments: two leases may be valid at once",
            Fix::from("switch it on for this user")
                .run(settings.psql("ALTER ROLE CURRENT_USER SET synchronous_commit = on")),
        );
    }
}

async fn standbys(look: &mut Look, settings: &Settings, checkup: &mut Checkup) -> Result<()> {
    // Whether they are synchronous is not for everybody to see: null then.
    let asked = "SELECT count(*), count(sync_state), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) \
        FROM pg_stat_replication";
    let rows = look.query(asked, &[]).await?;
    let Some(row) = rows.first() else { return Ok(()) };
    let (all, seen, synchronous): (i64, i64, i64) = (cell(row, 0)?, cell(row, 1)?, cell(row, 2)?);
    let names = settings.text("synchronous_standby_names");
    checkup.fact(
        "standbys",
        match all {
            0 => "none".to_owned(),
            _ if seen < all => format!("{all}"),
            _ => format!("{all}, {synchronous} of them synchronous"),
        },
    );
    let mode = settings.text("synchronous_commit");
    if all > 0 && (names.is_empty() || matches!(mode, "local" | "off")) {
        checkup.advice(
            "standbys follow, but no commit waits for them",
            "a failover forgets the grants of the last moments: two leases may be valid at once, and only the token protects",
            settings.system(
                "let commits wait for one of them, with synchronous_commit on",
                "synchronous_standby_names",
                "'ANY 1 (*)'",
            ),
        );
    }
    if !names.is_empty() && seen == all && synchronous == 0 && !matches!(mode, "local" | "off") {
        checkup.problem(
            format!("synchronous_standby_names is {names:?}, and none of these standbys is there"),
            "every commit waits for one: no lock can be taken, renewed or released meanwhile",
            settings.system(
                "bring a standby back; or wait for none, which gives up what they protect",
                "synchronous_standby_names",
                "''",
            ),
        );
    }
    Ok(())
}

async fn connections(look: &mut Look, settings: &Settings, checkup: &mut Checkup) -> Result<()> {
    let asked = "SELECT count(*) FROM pg_stat_activity WHERE backend_type IS NULL OR backend_type = 'client backend'";
    let used: i64 = look.query(asked, &[]).await?.first().map_or(Ok(0), |row| cell(row, 0))?;
    let most = settings.number("max_connections") - settings.number("superuser_reserved_connections");
    checkup.fact("connections", format!("{used} of {most}"));
    if most > 0 && used * 10 >= most * 8 {
        checkup.problem(
            format!("{used} of {most} connections are in use"),
            "a client that finds none cannot take, renew or release a lock; each client of tenure keeps one and opens up to fourteen",
            "raise max_connections, or put a pooler between (with ?listen= for a direct one)",
        );
    }
    Ok(())
}

fn waiting(desk: &Desk, hears: bool, checkup: &mut Checkup) {
    checkup.fact(
        "waiters hear of their turn",
        if hears { "at once (LISTEN)" } else { "when they look: every 50 ms to 1 s" },
    );
    checkup.fact("statements", if desk.preparing.is_on() { "prepared" } else { "not prepared" });
    if !hears && desk.settings.listen.is_some() {
        checkup.problem(
            "nothing is heard over the connection that listen= names",
            "waiters look every 50 ms to 1 s instead of being told",
            "let listen= name the same database of the same server, without a pooler of transactions between",
        );
    } else if !hears {
        checkup.advice(
            "nothing is heard: a pooler of transactions stands between",
            "waiters look every 50 ms to 1 s instead of being told, and statements are not prepared",
            "name a direct connection for listening: ?listen=HOST:PORT",
        );
    }
}

async fn notifications(look: &mut Look, settings: &Settings, checkup: &mut Checkup) -> Result<()> {
    let rows = look.query("SELECT pg_notification_queue_usage()", &[]).await?;
    let used: f64 = rows.first().map_or(Ok(0.0), |row| cell(row, 0))?;
    if used >= 0.5 {
        checkup.problem(
            format!("the queue of notifications is {:.0} % full", used * 100.0),
            "once it is full nobody is told of a grant: waiters learn it when they renew, every 5 s at most",
            Fix::from("end the session that listens and has been in a transaction for long")
                .run(settings.psql("SELECT pid, xact_start, query FROM pg_stat_activity ORDER BY xact_start")),
        );
    }
    Ok(())
}

fn upkeep(settings: &Settings, checkup: &mut Checkup) {
    if settings.text("autovacuum") == "off" {
        checkup.advice(
            "autovacuum is off",
            "every change of a lock leaves a dead row behind, and nobody sweeps them",
            settings.system("switch it on", "autovacuum", "on"),
        );
    }
    let isolation = settings.text("default_transaction_isolation");
    if isolation != "read committed" {
        checkup.advice(
            format!("default_transaction_isolation is {isolation}"),
            "two clients that want one name at the same time collide, and ask again",
            Fix::from("set it for this user")
                .run(settings.psql("ALTER ROLE CURRENT_USER SET default_transaction_isolation = 'read committed'")),
        );
    }
    let limit = settings.number("statement_timeout");
    if (1..STATEMENT_MIN_MS).contains(&limit) {
        checkup.advice(
            format!("statement_timeout is {limit} ms"),
            "an operation that waits for another client's is cancelled, and asked for again",
            Fix::from("set none for this user").run(settings.psql("ALTER ROLE CURRENT_USER SET statement_timeout = 0")),
        );
    }
}

async fn rights(look: &mut Look, schema: &str, checkup: &mut Checkup) -> Result<()> {
    let mut missing = Vec::new();
    let user = look.query("SELECT quote_ident(current_user)", &[]).await?;
    let user: String = user.first().map_or(Ok(String::new()), |row| cell(row, 0))?;
    for row in look.query(RIGHTS, &[(&schema, Type::TEXT)]).await? {
        let (table, right): (String, String) = (cell(&row, 0)?, cell(&row, 1)?);
        missing.push(format!("GRANT {right} ON {table} TO {user};"));
    }
    if !missing.is_empty() {
        // Quoted names would need to be quoted once more in a shell.
        checkup.problem(
            "the user lacks rights on the tables",
            "operations that need them are refused",
            format!("as their owner: {}", missing.join(" ")),
        );
    }
    Ok(())
}
