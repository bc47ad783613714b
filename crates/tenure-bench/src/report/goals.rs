//! Whether the figures that tenure set out to reach are reached.

use super::ahead::peers;
use super::service;
use super::table::{Table, exact, number};
use crate::contestant::RECORDED;
use crate::data::{Data, Pick, ratios};
use crate::over_http::{SERVICE, V3LOCK};
use crate::questions::pairs::LIMIT;
use crate::stats::Figure;
use crate::updates;

/// Why goals may be missed, and what was tried: by a part of their names.
const WHY: [(&str, &str); 5] = [
    (
        "acquisitions/s, against the peer best in it",
        "The peers that are ahead let whoever has just released take the name again before anybody else can be told: see their transfers. Every \
        acquisition of tenure's is a hand-over to another process, which takes a release, a message, and a process that wakes. Taking the name \
        again at once is what tasks of one process do (up to 32 of them, or 10 ms); between processes it was not tried, as it would give up the order they came in, which is promised.",
    ),
    (
        "1,000 tasks of one process on one name, acquisitions/s",
        "32 hand-overs in memory for each request to the server, which is as many as may pass by others that wait there; that request, while nobody holds the name, is nearly all of the time, \
        and the peers' pairs are bound by the same round trip. Tried: sending the request without a task of its own (17 % more, but pairs of one task took longer: not taken).",
    ),
    (
        "100,000 leases held, memory, store and client",
        "At the limit: 1.7 % in the run before, on the same code. Nothing was tried.",
    ),
    (
        "etcd, pairs/s of one task",
        "Both wait for the same two commits to etcd's disk, and differ by less than runs do: 1.02 times the day before, 0.97 in seven rounds right after this run. Nothing was tried for it.",
    ),
    (
        "PostgreSQL, pairs/s of one task",
        "The client's own time is what is left: some 120 µs of CPU a pair, of which the bare updates take 75, on a core that the server wants too. The server takes these statements as fast as the bare \
        updates (by pgbench, with commits that wait for no disk). Tried: a lone operation on its connection directly, plans made once, a statement for one name instead of arrays, one that makes no row where it \
        is known to be there, and one that does not lock the row before it changes it (pgbench: 0.74, 0.82, 0.86 and 1.0 of the bare updates).",
    ),
];

/// One goal: what was measured, and what it should be.
struct Goal {
    what: String,
    measured: String,
    goal: String,
    /// None if it was not measured.
    reached: Option<bool>,
}

fn at_least(what: &str, figure: Option<f64>, least: f64, unit: &str) -> Goal {
    goal(what, figure, &format!(">= {}{unit}", exact(least)), unit, |figure| figure >= least)
}

fn at_most(what: &str, figure: Option<f64>, most: f64, unit: &str) -> Goal {
    goal(what, figure, &format!("<= {}{unit}", exact(most)), unit, |figure| figure <= most)
}

fn goal(what: &str, figure: Option<f64>, goal: &str, unit: &str, reached: impl Fn(f64) -> bool) -> Goal {
    let measured = figure.map_or_else(|| "-".into(), |figure| format!("{}{unit}", number(figure)));
    Goal { what: what.into(), measured, goal: goal.into(), reached: figure.map(reached) }
}

/// The peer that is best in a field, and tenure against it.
fn against_best(data: &Data, pick: &Pick<'_>, field: &str, more_is_better: bool) -> Option<(String, f64)> {
    let peers = peers(data, pick, field).into_iter();
    let better = |one: &(String, Figure), other: &(String, Figure)| one.1.median.total_cmp(&other.1.median);
    let (best, _) = if more_is_better { peers.max_by(better) } else { peers.min_by(better) }?;
    let ratio = data.ratio(pick, ("tenure", &best), field)?;
    Some((best, ratio.median))
}

/// A figure that should be so many times that of the peer that is best in it.
fn than_best(
    data: &Data,
    (what, against): (&str, &str),
    pick: &Pick<'_>,
    (field, more_is_better): (&str, bool),
    goal: f64,
) -> Goal {
    let best = against_best(data, pick, field, more_is_better);
    let peer = best.as_ref().map_or(String::new(), |(peer, _)| format!(" ({peer})"));
    let what = format!("{what}, against {against}{peer}");
    let ratio = best.map(|(_, ratio)| ratio);
    if more_is_better { at_least(&what, ratio, goal, " times") } else { at_most(&what, ratio, goal, " times") }
}

fn goals(data: &Data) -> Vec<Goal> {
    let pick = |question, store, params, part| Pick { question, store, params, part };
    let median = |pick: &Pick<'_>, field: &str| data.figure(pick, "tenure", field).map(|figure| figure.median);
    let mut goals = Vec::new();

    let many = pick("pairs", "redis", &[("tasks", 256.0)], "");
    let limit = data.ratio(&many, ("tenure", LIMIT), "pairs_per_s");
    goals.push(at_least(
        "Redis, pairs/s of 256 tasks, of what redis-benchmark does",
        limit.map(|ratio| ratio.median),
        1.0,
        "",
    ));
    let recorded = data.ratio(&many, (RECORDED, "tenure"), "pairs_per_s");
    goals.push(at_least(
        "Redis, pairs/s of 256 tasks whose metrics are recorded, of those without",
        recorded.map(|ratio| ratio.median),
        0.97,
        "",
    ));
    let one = pick("pairs", "redis", &[("tasks", 1.0)], "");
    let classic = data.ratio(&one, ("tenure", "classic pair"), "p50_us").map(|ratio| ratio.median);
    goals.push(at_most(
        "Redis, time of a pair of one task, against the classic pair by the same client",
        classic,
        1.1,
        " times",
    ));
    let best_peer = "the best peer";
    let what = ("Redis, time of a pair of one task", best_peer);
    goals.push(than_best(data, what, &one, ("p50_us", false), 1.0));
    let some = pick("pairs", "redis", &[("tasks", 16.0)], "");
    goals.push(than_best(data, ("Redis, pairs/s of 16 tasks", best_peer), &some, ("pairs_per_s", true), 1.0));

    let hot = pick("hot", "redis", &[("processes", 8.0)], "");
    for (what, field, more, goal) in [
        ("transfers to another owner/s", "transfers_per_s", true, 20.0),
        ("acquisitions/s", "acquisitions_per_s", true, 1.0),
        ("the longest wait", "wait_max_us", false, 0.1),
    ] {
        let what = format!("8 processes on one name, {what}");
        goals.push(than_best(data, (&what, "the peer best in it"), &hot, (field, more), goal));
    }
    let commands = pick("hot", "redis", &[("processes", 8.0)], "commands");
    let sent = median(&commands, "commands_per_acquisition");
    goals.push(at_most("8 processes on one name, commands sent per acquisition", sent, 3.0, ""));

    let crowd = pick("crowd", "redis", &[], "");
    let what = ("1,000 tasks of one process on one name, acquisitions/s", best_peer);
    goals.push(than_best(data, what, &crowd, ("acquisitions_per_s", true), 50.0));

    let many = pick("redlock", "redlock", &[("tasks", 256.0)], "pairs");
    goals.push(than_best(data, ("Redlock, pairs/s of 256 tasks", best_peer), &many, ("pairs_per_s", true), 1.0));
    let one = pick("redlock", "redlock", &[("hung", 0.0)], "latency");
    goals.push(than_best(data, ("Redlock, time of a pair of one task", best_peer), &one, ("p50_us", false), 1.0));
    let acquire = |hung: &'static [(&'static str, f64)]| {
        data.rounds(&pick("redlock", "redlock", hung, "acquire"), "tenure", "p50_us")
    };
    let hung = Figure::of(&ratios(&acquire(&[("hung", 2.0)]), &acquire(&[("hung", 0.0)])));
    let what = "Redlock, p50 of an acquire with two of five servers hung, against all five up";
    goals.push(at_most(what, hung.map(|ratio| ratio.median), 1.2, " times"));

    let held = pick("held", "redis", &[("leases", 100_000.0)], "");
    goals.push(at_most("100,000 leases held, client, of one core", median(&held, "cpu_percent"), 10.0, " %"));
    goals.push(at_most("100,000 leases held, client, memory each", median(&held, "bytes_per_lease"), 1_024.0, " B"));

    let outage = pick("outage", "redis", &[("leases", 100_000.0)], "");
    let late = data.figure(&outage, "tenure", "late").map(|late| late.max);
    goals.push(at_most("100,000 leases lost together, told after their deadline", late, 0.0, ""));

    let command = pick("embedded", "embedded", &[], "command");
    let (ours, flock) = (data.rounds(&command, "tenure", "p50_ms"), data.rounds(&command, "flock", "p50_ms"));
    let later: Vec<f64> = ours.iter().filter_map(|(round, own)| Some(own - flock.get(round)?)).collect();
    let later = Figure::of(&later).map(|later| later.median);
    goals.push(at_most("`tenure run` starts its command later than flock, embedded", later, 5.0, " ms"));

    let part = |store, params, part, field| median(&pick("embedded", store, params, part), field);
    goals.push(at_most("pair of one task, memory", part("memory", &[], "pair", "pair_us"), 2.0, " µs"));
    for (what, params) in [("one thread", &[("threads", 1.0)]), ("two threads", &[("threads", 2.0)])] {
        let rate = part("memory", params, "hand-over", "acquisitions_per_s");
        goals.push(at_least(&format!("1,000 tasks hand one name over, memory, {what}"), rate, 1e6, "/s"));
    }
    let held = part("memory", &[("leases", 100_000.0)], "held", "cpu_percent");
    goals.push(at_most("100,000 leases held, memory, store and client, of one core", held, 2.0, " %"));
    let wake = part("embedded", &[], "wake", "p99_ms");
    goals.push(at_most("waiter in another process runs after the release, embedded, p99", wake, 5.0, " ms"));

    for (tasks, params) in
        [("one task", &[("tasks", 1.0)]), ("16 tasks", &[("tasks", 16.0)]), ("256 tasks", &[("tasks", 256.0)])]
    {
        let ratio = data.ratio(&pick("pairs", "postgres", params, ""), ("tenure", updates::NAME), "pairs_per_s");
        let what =
            format!("PostgreSQL, pairs/s of {tasks}, against two committed updates of one row by the same client");
        goals.push(at_least(&what, ratio.map(|ratio| ratio.median), 0.9, " times"));
    }
    let eight = [("processes", 8.0)];
    let transfers = |store, other| data.ratio(&pick("hot", store, &eight, ""), ("tenure", other), "transfers_per_s");
    let ratio = transfers("postgres", updates::NAME).map(|ratio| ratio.median);
    let what = "PostgreSQL, 8 processes on one name, transfers/s, against the same updates of one row by 8 processes";
    goals.push(at_least(what, ratio, 0.7, " times"));
    for (store, named, recipe, one, many, hot) in [
        ("etcd", "etcd", "etcd-concurrency", 1.0, 2.0, 5.0),
        ("zookeeper", "ZooKeeper", "curator-mutex", 1.0, 1.5, 1.2),
    ] {
        for (tasks, params, goal) in [("one task", &[("tasks", 1.0)], one), ("256 tasks", &[("tasks", 256.0)], many)] {
            let ratio = data.ratio(&pick("pairs", store, params, ""), ("tenure", recipe), "pairs_per_s");
            let what = format!("{named}, pairs/s of {tasks}, against {recipe}");
            goals.push(at_least(&what, ratio.map(|ratio| ratio.median), goal, " times"));
        }
        let ratio = transfers(store, recipe).map(|ratio| ratio.median);
        let what = format!("{named}, 8 processes on one name, transfers/s, against {recipe}");
        goals.push(at_least(&what, ratio, hot, " times"));
    }
    let many = [("tasks", 64.0)];
    let ratio = service::against(data, &many, "pairs", (V3LOCK, "etcd"), "pairs_per_s");
    let what = "the service over Redis, pairs/s of 64 connections, against etcd's v3lock";
    goals.push(at_least(what, ratio.map(|ratio| ratio.median), 3.0, " times"));
    let ratio = service::against(data, &many, "pairs", (V3LOCK, "etcd"), "p99_us");
    let what = "the service over Redis, p99 of a pair at 64 connections, against etcd's v3lock";
    goals.push(at_most(what, ratio.map(|ratio| ratio.median), 0.33, " times"));
    let later = service::handed_over_later_ms(data);
    goals.push(at_most(
        "the service, p99 of a hand-over among 10,000 waiters, later than the library's",
        later,
        2.0,
        " ms",
    ));
    let waiter = median(&pick("service", SERVICE, &[("waiters", 10_000.0)], "waiters"), "bytes_per_waiter");
    let waiter = waiter.map(|bytes| bytes / 1_024.0);
    goals.push(at_most("the service, memory for each of 10,000 requests that wait", waiter, 20.0, " KiB"));
    goals
}

/// The goals, and which of them are reached.
pub(super) fn text(data: &Data) -> String {
    let mut table = Table::new(["what", "measured", "to reach", ""]);
    let goals = goals(data);
    for goal in &goals {
        let verdict = match goal.reached {
            Some(true) => "reached",
            Some(false) => "**not reached**",
            None => "not measured",
        };
        table.row([&goal.what, &goal.measured, &goal.goal, verdict]);
    }
    let count = |reached| goals.iter().filter(|goal| goal.reached == reached).count();
    let missed = goals.iter().filter(|goal| goal.reached == Some(false));
    let reasons: Vec<String> = missed
        .filter_map(|goal| WHY.iter().find(|(part, _)| goal.what.contains(part)))
        .map(|(part, why)| format!("- **{part}**: {why}\n"))
        .collect();
    let reasons =
        if reasons.is_empty() { String::new() } else { format!("Why some are not reached:\n\n{}\n", reasons.concat()) };
    format!(
        "## The goals\n\n{} reached, {} not reached, {} not measured. \"times\" is tenure's figure divided by the other's.\n\n{}\n{reasons}",
        count(Some(true)),
        count(Some(false)),
        count(None),
        table.text()
    )
}
