//! What came of it: one JSON object, or three tables.

use serde::Serialize;

use crate::plain::plain;
use crate::table::{finish, table};

#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    store: String,
    pub(super) uncontended: Vec<Uncontended>,
    pub(super) hot: Vec<Hot>,
    pub(super) held: Vec<Held>,
}

#[derive(Debug, Serialize)]
pub(super) struct Uncontended {
    pub(super) tasks: usize,
    pub(super) pairs_per_s: f64,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Hot {
    pub(super) processes: usize,
    pub(super) acquisitions_per_s: f64,
    pub(super) transfers_per_s: f64,
    pub(super) wait_p50_us: Option<f64>,
    pub(super) wait_p99_us: Option<f64>,
    pub(super) jain: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Held {
    pub(super) leases: usize,
    pub(super) cpu_percent: Option<f64>,
    pub(super) bytes_per_lease: Option<f64>,
}

/// A figure with so many digits behind the point; `None` if it is no number.
pub(super) fn figure(value: f64, digits: i32) -> Option<f64> {
    let scale = 10_f64.powi(digits);
    value.is_finite().then(|| (value * scale).round() / scale)
}

impl Report {
    /// The same, of this store.
    pub(super) fn of(self, store: String) -> Self {
        Self { store, ..self }
    }

    pub(super) fn table(&self) -> String {
        let mut text = format!("{}\n", plain(&self.store));
        if !self.uncontended.is_empty() {
            text.push_str(&self.pairs());
        }
        if !self.hot.is_empty() {
            text.push_str(&self.turns());
        }
        if !self.held.is_empty() {
            text.push_str(&self.leases());
        }
        text
    }

    fn pairs(&self) -> String {
        let mut pairs = table(["UNCONTENDED", "PAIRS/S", "P50", "P99"]);
        for row in &self.uncontended {
            pairs.add_row([
                count(row.tasks, "task", "tasks"),
                rate(row.pairs_per_s),
                time(row.p50_us),
                time(row.p99_us),
            ]);
        }
        format!("\n{}", finish(pairs, &[]))
    }

    fn turns(&self) -> String {
        let mut hot = table(["HOT NAME", "TURNS/S", "TRANSFERS/S", "WAIT P50", "WAIT P99", "JAIN"]);
        for row in &self.hot {
            hot.add_row([
                count(row.processes, "process", "processes"),
                rate(row.acquisitions_per_s),
                rate(row.transfers_per_s),
                time(row.wait_p50_us),
                time(row.wait_p99_us),
                row.jain.map_or_else(none, |jain| format!("{jain:.3}")),
            ]);
        }
        format!("\n{}", finish(hot, &[]))
    }

    fn leases(&self) -> String {
        let mut held = table(["HELD", "CPU", "MEMORY"]);
        for row in &self.held {
            held.add_row([
                count(row.leases, "lease", "leases"),
                row.cpu_percent.map_or_else(none, |percent| format!("{percent:.1} % of a core")),
                row.bytes_per_lease.map_or_else(none, |bytes| format!("{bytes:.0} B each")),
            ]);
        }
        format!("\n{}", finish(held, &[]))
    }
}

fn none() -> String {
    "-".to_owned()
}

fn count(number: usize, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}

fn rate(rate: f64) -> String {
    if rate < 100.0 { format!("{rate:.1}") } else { grouped(rate.round() as usize) }
}

/// A number of microseconds, as people read it.
fn time(us: Option<f64>) -> String {
    match us {
        None => none(),
        Some(us) if us < 10.0 => format!("{us:.1} µs"),
        Some(us) if us < 1_000.0 => format!("{us:.0} µs"),
        Some(us) if us < 100_000.0 => format!("{:.1} ms", us / 1e3),
        Some(us) if us < 1_000_000.0 => format!("{:.0} ms", us / 1e3),
        Some(us) => format!("{:.1} s", us / 1e6),
    }
}

/// With a comma after every third digit.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_shown_short() {
        assert_eq!([7, 1_000, 12_345_678].map(grouped), ["7", "1,000", "12,345,678"]);
        assert_eq!([0.0, 99.94, 123_456.7].map(rate), ["0.0", "99.9", "123,457"]);
        let times = [1.26, 180.4, 1_240.0, 250_000.0, 3_000_000.0].map(|us| time(Some(us)));
        assert_eq!(times, ["1.3 µs", "180 µs", "1.2 ms", "250 ms", "3.0 s"]);
        assert_eq!(time(None), "-");
        assert_eq!((figure(1.25, 1), figure(f64::NAN, 1)), (Some(1.3), None));
    }

    #[test]
    fn a_table_for_each_thing_that_was_measured() {
        let mut report = Report::default().of("redis://h".to_owned());
        report.uncontended.push(Uncontended { tasks: 1, pairs_per_s: 5_000.4, p50_us: Some(180.0), p99_us: None });
        report.held.push(Held { leases: 1_000, cpu_percent: Some(0.21), bytes_per_lease: Some(900.0) });
        assert_eq!(
            report.table(),
            "redis://h\n\n\
             UNCONTENDED  PAIRS/S  P50     P99\n\
             1 task       5,000    180 µs  -\n\n\
             HELD          CPU              MEMORY\n\
             1,000 leases  0.2 % of a core  900 B each\n"
        );
    }
}
