//! A section for each question: its tables and its plots.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::service;
use super::table::{Table, exact, median, number, scaled, spread};
use crate::data::{Data, Pick, ratios};
use crate::questions::pairs::LIMIT;
use crate::questions::waiters::stores;
use crate::stats::Figure;
use crate::stores::OTHERS;

/// All sections that there are data for.
pub(super) fn text(data: &Data) -> String {
    let sections = [
        ("Pairs", pairs(data)),
        ("One name, several processes", hot(data)),
        ("One name, a thousand tasks of one process", crowd(data)),
        ("The holder is killed", takeover(data)),
        ("Leases held", held(data)),
        ("The store dies under many leases", outage(data)),
        ("Waiters", waiters(data)),
        ("Names", names(data)),
        ("Redlock", redlock(data)),
        ("The lock service", service::text(data)),
        ("The engine, the embedded store and the command", embedded(data)),
    ];
    let mut text = String::new();
    for (title, section) in sections {
        let section = if section.trim().is_empty() { "Not measured in this run.\n".to_owned() } else { section };
        let _ = writeln!(text, "## {title}\n\n{section}");
    }
    text.trim_end().to_owned() + "\n"
}

fn over<'a>(question: &'a str, store: &'a str, params: &'a [(&'a str, f64)], part: &'a str) -> Pick<'a> {
    Pick { question, store, params, part }
}

fn plot(name: &str, what: &str) -> String {
    format!("![{what}]({name}.svg)\n\n")
}

/// A heading and a table, if it has rows.
fn titled(text: &mut String, title: &str, table: &Table) {
    if !table.is_empty() {
        let _ = writeln!(text, "**{title}**\n\n{}", table.text());
    }
}

fn counted(count: f64, what: &str) -> String {
    format!("{} {what}{}", exact(count), if count == 1.0 { "" } else { "s" })
}

fn times(ratio: Option<Figure>) -> String {
    ratio.map_or_else(|| "-".into(), |ratio| format!("{} times", number(ratio.median)))
}

fn pairs(data: &Data) -> String {
    let limits = data.rounds(&over("pairs", "redis", &[], ""), LIMIT, "pairs_per_s");
    let mut text = pairs_over(data, "redis", LIMIT, |_| limits.clone());
    if !text.is_empty() {
        text = plot("pairs", "pairs per second by tasks") + &text;
    }
    for store in &OTHERS {
        let limit = store.limit.map_or_else(String::new, |limit| limit().peer);
        text += &pairs_over(data, store.name, &limit, |pick| data.rounds(pick, &limit, "pairs_per_s"));
    }
    text
}

/// A table for each number of tasks.
fn pairs_over(data: &Data, store: &str, limit: &str, limits: impl Fn(&Pick<'_>) -> BTreeMap<usize, f64>) -> String {
    let mut text = String::new();
    for tasks in data.values(&over("pairs", store, &[], ""), "tasks") {
        let params = [("tasks", tasks)];
        let pick = over("pairs", store, &params, "");
        let against = format!("of {}'s", if limit.is_empty() { "the limit" } else { limit });
        let mut table = Table::new([
            "contestant",
            "pairs/s",
            "tenure / this one",
            &against,
            "p50 µs",
            "p99 µs",
            "client CPU µs a pair",
            "server CPU µs a pair",
        ]);
        for name in data.contestants(&pick) {
            let own = data.rounds(&pick, &name, "pairs_per_s");
            let field = |field: &str| data.figure(&pick, &name, field);
            table.row([
                name.clone(),
                spread(field("pairs_per_s")),
                times(data.ratio(&pick, ("tenure", &name), "pairs_per_s")),
                median(Figure::of(&ratios(&own, &limits(&pick)))),
                spread(field("p50_us")),
                median(field("p99_us")),
                median(field("client_us_per_pair")),
                median(field("server_us_per_pair")),
            ]);
        }
        titled(&mut text, &(counted(tasks, "task") + &beside_redis(store)), &table);
    }
    text
}

/// What a title says of a store, if it is not Redis.
fn beside_redis(store: &str) -> String {
    if store == "redis" { String::new() } else { format!(", {store}") }
}

/// The columns of a contest for one name.
fn contest(data: &Data, pick: &Pick<'_>) -> Table {
    let mut table = Table::new([
        "contestant",
        "acquisitions/s",
        "tenure / this one",
        "transfers/s",
        "wait p50 ms",
        "p99 ms",
        "longest ms",
        "Jain",
        "without a turn",
        "client CPU µs",
        "server CPU µs",
    ]);
    for name in data.contestants(pick) {
        let field = |field: &str| data.figure(pick, &name, field);
        let wait = |name: &str| scaled(field(name), 1e-3);
        table.row([
            name.clone(),
            spread(field("acquisitions_per_s")),
            times(data.ratio(pick, ("tenure", &name), "acquisitions_per_s")),
            spread(field("transfers_per_s")),
            median(wait("wait_p50_us")),
            median(wait("wait_p99_us")),
            spread(wait("wait_max_us")),
            median(field("jain")),
            median(field("without_a_turn")),
            median(field("client_us_per_acquisition")),
            median(field("server_us_per_acquisition")),
        ]);
    }
    table
}

fn hot(data: &Data) -> String {
    let mut text = String::new();
    let all = over("hot", "redis", &[], "");
    for processes in data.values(&all, "processes") {
        let params = [("processes", processes)];
        let table = contest(data, &Pick { params: &params, ..all });
        titled(&mut text, &format!("{} processes", exact(processes)), &table);
    }
    let commands = over("hot", "redis", &[], "commands");
    let mut table = Table::new(["contestant", "commands sent per acquisition"]);
    for name in data.contestants(&commands) {
        let sent = data.figure(&commands, &name, "commands_per_acquisition");
        table.row([name, median(sent)]);
    }
    titled(&mut text, "Commands, 8 processes, counted with `MONITOR` in a pass of their own", &table);
    if !text.is_empty() {
        let plots =
            plot("hot-waits", "waits of eight processes") + &plot("hot-acquisitions", "acquisitions by processes");
        text = plots + &text;
    }
    for store in &OTHERS {
        let all = over("hot", store.name, &[], "");
        for processes in data.values(&all, "processes") {
            let params = [("processes", processes)];
            let title = format!("{} processes{}", exact(processes), beside_redis(store.name));
            titled(&mut text, &title, &contest(data, &Pick { params: &params, ..all }));
        }
    }
    text
}

fn crowd(data: &Data) -> String {
    contest(data, &over("crowd", "redis", &[], "")).text()
}

fn takeover(data: &Data) -> String {
    let mut table = Table::new(["contestant", "store", "ms from the kill to the next holder (ttl 2,000 ms)"]);
    for store in ["redis", "embedded"].into_iter().chain(OTHERS.map(|store| store.name)) {
        let pick = over("takeover", store, &[], "");
        for name in data.contestants(&pick) {
            let after = spread(data.figure(&pick, &name, "after_ms"));
            table.row([name, store.to_owned(), after]);
        }
    }
    table.text()
}

fn held(data: &Data) -> String {
    let mut text = String::new();
    for leases in data.values(&over("held", "redis", &[], ""), "leases") {
        let params = [("leases", leases)];
        let pick = over("held", "redis", &params, "");
        let mut table = Table::new([
            "contestant",
            "client CPU %",
            "client B a lease",
            "server CPU %",
            "server B a lease",
            "scripts/s",
            "renewals/s",
            "still held",
        ]);
        for name in data.contestants(&pick) {
            let field = |field: &str| data.figure(&pick, &name, field);
            table.row([
                name.clone(),
                spread(field("cpu_percent")),
                median(field("bytes_per_lease")),
                spread(field("server_cpu_percent")),
                median(field("server_bytes_per_lease")),
                median(field("scripts_per_s")),
                median(field("renewals_per_s")),
                median(field("held")),
            ]);
        }
        titled(&mut text, &format!("{} leases", exact(leases)), &table);
    }
    if text.is_empty() { text } else { plot("held", "CPU by leases held") + &text }
}

fn outage(data: &Data) -> String {
    let all = over("outage", "redis", &[], "");
    let mut table = Table::new([
        "leases",
        "tasks that wait for the loss",
        "told late",
        "p50 ms after the deadline",
        "latest ms",
        "client CPU s until all are told",
        "until it is calm",
    ]);
    for leases in data.values(&all, "leases") {
        for watched in data.values(&Pick { params: &[("leases", leases)], ..all }, "watched") {
            let params = [("leases", leases), ("watched", watched)];
            let field = |field: &str| data.figure(&Pick { params: &params, ..all }, "tenure", field);
            table.row([
                exact(leases),
                exact(watched),
                spread(field("late")),
                median(field("late_p50_ms")),
                spread(field("late_max_ms")),
                spread(field("cpu_s")),
                spread(field("cpu_calm_s")),
            ]);
        }
    }
    table.text()
}

fn waiters(data: &Data) -> String {
    let mut times =
        Table::new(["store", "waiters", "claim µs (p99)", "renew µs (p99)", "release µs (p99)", "all renewed, ms"]);
    let mut server = Table::new(["waiters", "claim µs (calls)", "renew µs (calls)", "release µs (calls)"]);
    for store in stores() {
        let all = over("waiters", store, &[], "");
        for waiters in data.values(&all, "waiters") {
            let params = [("waiters", waiters)];
            let field = |field: &str| data.figure(&Pick { params: &params, ..all }, "tenure", field);
            let ops = |first: &str, second: &str| {
                ["claim", "renew", "release"].map(|op| {
                    let of = |name: &str| field(&format!("{op}.{name}"));
                    of(first).map(|figure| format!("{} ({})", number(figure.median), median(of(second))))
                })
            };
            let told = |cells: [Option<String>; 3]| cells.map(|cell| cell.unwrap_or_else(|| "-".into()));
            let (time, cost) = (ops("p50_us", "p99_us"), ops("server_us", "calls"));
            if time.iter().any(Option::is_some) {
                let all_ms = spread(field("all_ms"));
                times.row([store.to_owned(), exact(waiters)].into_iter().chain(told(time)).chain([all_ms]));
            }
            if cost.iter().any(Option::is_some) {
                server.row([exact(waiters)].into_iter().chain(told(cost)));
            }
        }
    }
    let mut text = times.text() + if times.is_empty() { "" } else { "\n" };
    if !server.is_empty() {
        text += &plot("waiters", "server time by waiters");
        titled(&mut text, "What it costs a Redis: time in the script, and the calls that this makes", &server);
    }
    text
}

fn names(data: &Data) -> String {
    let all = over("names", "redis", &[], "");
    let mut table =
        Table::new(["other names held", "pair p50 µs", "p99 µs", "server CPU µs a pair", "server B a name"]);
    for names in data.values(&all, "names") {
        let params = [("names", names)];
        let field = |field: &str| data.figure(&Pick { params: &params, ..all }, "tenure", field);
        table.row([
            exact(names),
            spread(field("p50_us")),
            median(field("p99_us")),
            median(field("server_us_per_pair")),
            // A few names are less than what the server's memory varies by anyway.
            if names >= 1_000.0 { median(field("server_bytes_per_name")) } else { "-".to_owned() },
        ]);
    }
    if table.is_empty() {
        return String::new();
    }
    let released = data.figure(&over("names", "redis", &[], "released"), "tenure", "server_bytes_per_name");
    let released = format!("\nOnce all were released: {} B a name.\n", median(released));
    plot("names", "a pair among many names") + &table.text() + &released
}

fn redlock(data: &Data) -> String {
    let mut text = String::new();
    for (title, part) in
        [("A pair of one task, by servers that hang", "latency"), ("An acquire alone, by servers that hang", "acquire")]
    {
        let all = over("redlock", "redlock", &[], part);
        let mut table = Table::new(["hung", "contestant", "p50 ms", "p99 ms", "longest ms", "against none hung"]);
        for hung in data.values(&all, "hung") {
            let params = [("hung", hung)];
            let pick = Pick { params: &params, ..all };
            for name in data.contestants(&pick) {
                let field = |field: &str| scaled(data.figure(&pick, &name, field), 1e-3);
                let none = data.rounds(&Pick { params: &[("hung", 0.0)], ..all }, &name, "p50_us");
                let against = Figure::of(&ratios(&data.rounds(&pick, &name, "p50_us"), &none));
                let (p50, p99, longest) = (field("p50_us"), field("p99_us"), field("max_us"));
                table.row([exact(hung), name, spread(p50), median(p99), median(longest), times(against)]);
            }
        }
        titled(&mut text, title, &table);
    }
    let mut table = Table::new(["contestant", "store", "pairs/s", "tenure / this one", "client CPU µs a pair"]);
    for (store, part) in [("redlock", "pairs"), ("redis", "one redis")] {
        let pick = over("redlock", store, &[], part);
        for name in data.contestants(&pick) {
            let field = |field: &str| data.figure(&pick, &name, field);
            let (rate, cpu) = (spread(field("pairs_per_s")), median(field("client_us_per_pair")));
            let against = times(data.ratio(&pick, ("tenure", &name), "pairs_per_s"));
            table.row([name, store.to_owned(), rate, against, cpu]);
        }
    }
    titled(&mut text, "256 tasks; one Redis in the same rounds", &table);
    titled(&mut text, "8 processes on one name", &contest(data, &over("redlock", "redlock", &[], "hot")));
    if text.is_empty() { text } else { plot("redlock", "time of a pair by servers that hang") + &text }
}

fn embedded(data: &Data) -> String {
    let mut table = Table::new(["what", "measured"]);
    let mut add = |what: &str, pick: Pick<'_>, who: &str, fields: &[(&str, &str)]| {
        let told = |(field, unit): &(&str, &str)| {
            data.figure(&pick, who, field).map(|figure| format!("{}{unit}", spread(Some(figure))))
        };
        let told: Vec<String> = fields.iter().filter_map(told).collect();
        if !told.is_empty() {
            table.row([what.to_owned(), told.join(", ")]);
        }
    };
    let part = |store, params, part| Pick { question: "embedded", store, params, part };
    add("pair of one task, memory", part("memory", &[], "pair"), "tenure", &[("pair_us", " µs")]);
    for (threads, params) in [("one thread", &[("threads", 1.0)]), ("two threads", &[("threads", 2.0)])] {
        let what = format!("1,000 tasks hand one name over, memory, {threads}");
        add(&what, part("memory", params, "hand-over"), "tenure", &[("acquisitions_per_s", "/s")]);
    }
    let held = [("cpu_percent", " % of one core"), ("bytes_per_lease", " B each"), ("held", " held")];
    add("leases held, memory (store and client)", part("memory", &[], "held"), "tenure", &held);
    let pair = [("pairs_per_s", "/s"), ("p50_us", " µs p50"), ("p99_us", " µs p99")];
    add("pairs of one task, embedded", part("embedded", &[("tasks", 1.0)], "pairs"), "tenure", &pair);
    add("pairs of 256 tasks, embedded", part("embedded", &[("tasks", 256.0)], "pairs"), "tenure", &pair);
    let hot = [("acquisitions_per_s", "/s"), ("wait_p99_us", " µs p99 of the wait"), ("jain", " Jain")];
    add("8 processes on one name, embedded", part("embedded", &[], "hot"), "tenure", &hot);
    let ms = [("p50_ms", " ms p50"), ("p99_ms", " ms p99"), ("max_ms", " ms longest")];
    add("a waiter in another process runs after the release, embedded", part("embedded", &[], "wake"), "tenure", &ms);
    add("`tenure run` to the command's first line", part("embedded", &[], "command"), "tenure", &ms);
    add("`flock` to the command's first line", part("embedded", &[], "command"), "flock", &ms);
    table.text()
}
