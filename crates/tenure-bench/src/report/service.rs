//! The section of the lock service: its tables have contestants over three stores, which are one choice to a caller.

use std::fmt::Write as _;

use super::table::{Table, exact, median, scaled, spread};
use crate::data::{Data, Pick, ratios};
use crate::over_http::{SERVICE, V3LOCK};
use crate::stats::Figure;

/// Who is compared, and over which store.
const WHO: [(&str, &str, &str); 3] = [
    ("`tenure serve` over Redis", "tenure", SERVICE),
    ("the library over Redis", "tenure", "redis"),
    ("etcd's v3lock", V3LOCK, "etcd"),
];

/// How often the service's rate is that of another, round by round.
pub(super) fn against(
    data: &Data,
    params: &[(&str, f64)],
    part: &str,
    who: (&str, &str),
    field: &str,
) -> Option<Figure> {
    let pick = |store| Pick { question: "service", store, params, part };
    let own = data.rounds(&pick(SERVICE), "tenure", field);
    Figure::of(&ratios(&own, &data.rounds(&pick(who.1), who.0, field)))
}

/// By how many milliseconds the p99 of a hand-over among 10,000 waiters is longer than the library's.
pub(super) fn handed_over_later_ms(data: &Data) -> Option<f64> {
    let params = [("waiters", 10_000.0)];
    let p99 = |store| {
        let pick = Pick { question: "service", store, params: &params, part: "waiters" };
        data.figure(&pick, "tenure", "handed_over_p99_us").map(|figure| figure.median)
    };
    Some((p99(SERVICE)? - p99("redis")?) / 1e3)
}

pub(super) fn text(data: &Data) -> String {
    let mut text = String::new();
    let all = Pick { question: "service", store: SERVICE, params: &[], part: "pairs" };
    let mut table = Table::new([
        "connections",
        "contestant",
        "pairs/s",
        "the service / this one",
        "p50 µs",
        "p99 µs",
        "client CPU µs a pair",
        "service CPU µs a pair",
    ]);
    for tasks in data.values(&all, "tasks") {
        let params = [("tasks", tasks)];
        for (told, name, store) in WHO {
            let pick = Pick { store, params: &params, ..all };
            let field = |field: &str| data.figure(&pick, name, field);
            if field("pairs_per_s").is_some() {
                table.row([
                    exact(tasks),
                    told.to_owned(),
                    spread(field("pairs_per_s")),
                    median(against(data, &params, "pairs", (name, store), "pairs_per_s")),
                    median(field("p50_us")),
                    median(field("p99_us")),
                    median(field("client_us_per_pair")),
                    median(field("service_us_per_pair")),
                ]);
            }
        }
    }
    if !table.is_empty() {
        let _ = writeln!(text, "{}", table.text());
    }
    let mut table = Table::new([
        "contestant, 8 processes on one name",
        "hand-overs/s",
        "the service / this one",
        "wait p50 ms",
        "wait p99 ms",
        "longest ms",
    ]);
    for (told, name, store) in WHO {
        let pick = Pick { store, part: "hot", ..all };
        let field = |field: &str| data.figure(&pick, name, field);
        if field("transfers_per_s").is_some() {
            let ms = |name: &str| median(scaled(field(name), 1e-3));
            let ratio = median(against(data, &[], "hot", (name, store), "transfers_per_s"));
            let waits = [ms("wait_p50_us"), ms("wait_p99_us"), ms("wait_max_us")];
            let [p50, p99, longest] = waits;
            table.row([told.to_owned(), spread(field("transfers_per_s")), ratio, p50, p99, longest]);
        }
    }
    if !table.is_empty() {
        let _ = writeln!(text, "{}", table.text());
    }
    let mut table = Table::new([
        "waiters, 100 for each name",
        "contestant",
        "memory KiB each",
        "release until the next one knows, p50 ms",
        "p99 ms",
    ]);
    for (told, name, store) in WHO {
        let pick = Pick { store, part: "waiters", ..all };
        let field = |field: &str| data.figure(&pick, name, field);
        if let Some(count) = field("waiters") {
            let memory = median(scaled(field("bytes_per_waiter"), 1.0 / 1024.0));
            let ms = |name: &str| median(scaled(field(name), 1e-3));
            let (p50, p99) = (ms("handed_over_p50_us"), ms("handed_over_p99_us"));
            table.row([exact(count.median), told.to_owned(), memory, p50, p99]);
        }
    }
    if !table.is_empty() {
        let _ = writeln!(text, "{}", table.text());
        text += "Memory is the service's own, its connections included: what its resident set grew by. Each of its waiters has a connection.\n";
    }
    text
}
