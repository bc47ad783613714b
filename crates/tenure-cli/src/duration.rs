//! Durations, as people write and read them.

use std::time::Duration;

use tenure::watch::INTERVAL_MIN;
use tenure::{TTL_MAX, TTL_MIN};

/// The longest time between two looks.
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

const EXAMPLES: &str = "500ms, 30s or 1m";

/// Reads `30s`, `500ms`, `1m 30s`. A bare number is refused: seconds to one, milliseconds to another.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let bare = text.trim();
    if !bare.is_empty() && bare.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(format!("a duration needs a unit, such as {bare}s, {bare}ms or {bare}m"));
    }
    humantime::parse_duration(bare).map_err(|_| format!("write a duration as {EXAMPLES}"))
}

/// Reads a ttl.
pub(crate) fn parse_ttl(text: &str) -> Result<Duration, String> {
    let range = || format!("a ttl is {} to {}", humantime::format_duration(TTL_MIN), hours(TTL_MAX));
    let ttl = parse(text).map_err(|problem| format!("{problem}; {}", range()))?;
    if (TTL_MIN..=TTL_MAX).contains(&ttl) { Ok(ttl) } else { Err(range()) }
}

/// Reads how often to look.
pub(crate) fn parse_interval(text: &str) -> Result<Duration, String> {
    let range = || format!("an interval is {} to {}", exact(INTERVAL_MIN), hours(INTERVAL_MAX));
    let interval = parse(text).map_err(|problem| format!("{problem}; {}", range()))?;
    if (INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) { Ok(interval) } else { Err(range()) }
}

fn hours(duration: Duration) -> String {
    format!("{}h", duration.as_secs() / 3600)
}

/// In whole milliseconds, as programs are told it.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Shows a duration as it may be written.
pub(crate) fn exact(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

/// Shows a limit as it may be written: in whole milliseconds, which are within it.
pub(crate) fn limit(duration: Duration) -> String {
    exact(Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
}

/// Shows a duration in at most two units, the way one says it.
pub(crate) fn show(duration: Duration) -> String {
    let ms = duration.as_millis();
    let s = duration.as_secs();
    match s {
        0 => format!("{ms}ms"),
        1..10 => format!("{s}.{}s", ms % 1000 / 100),
        10..60 => format!("{s}s"),
        60..3600 => format!("{}m {:02}s", s / 60, s % 60),
        3600..86400 => format!("{}h {:02}m", s / 3600, s % 3600 / 60),
        _ => format!("{}d {:02}h", s / 86400, s % 86400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_number_is_refused_with_advice() {
        for bare in ["0", "30", "1.5"] {
            let problem = parse(bare).unwrap_err();
            assert!(problem.contains("unit") && problem.contains(&format!("{bare}s")), "{problem}");
        }
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("1m"), Ok(Duration::from_secs(60)));
        assert!(parse("").is_err() && parse("fast").is_err());
    }

    #[test]
    fn a_ttl_has_a_range() {
        for bad in ["0s", "99ms", "25h"] {
            assert_eq!(parse_ttl(bad).unwrap_err(), "a ttl is 100ms to 24h", "{bad}");
        }
        assert!(parse_ttl("100ms").is_ok() && parse_ttl("24h").is_ok());
    }

    #[test]
    fn what_is_no_duration_is_told_what_one_is() {
        for bad in ["abc", "-5s", "10S", "5 parsecs", ""] {
            assert_eq!(parse(bad).unwrap_err(), "write a duration as 500ms, 30s or 1m", "{bad}");
            let problem = parse_ttl(bad).unwrap_err();
            assert!(problem.ends_with("as 500ms, 30s or 1m; a ttl is 100ms to 24h"), "{problem}");
        }
    }

    #[test]
    fn limits_are_shown_as_they_may_be_written() {
        assert_eq!(limit(Duration::from_secs(10) / 3), "3s 333ms");
        assert_eq!(exact(Duration::from_micros(3_333_500)), "3s 333ms 500us");
    }

    #[test]
    fn durations_are_shown_short() {
        for (ms, shown) in [
            (7, "7ms"),
            (1_250, "1.2s"),
            (59_000, "59s"),
            (61_000, "1m 01s"),
            (7_380_000, "2h 03m"),
            (90_000_000, "1d 01h"),
        ] {
            assert_eq!(show(Duration::from_millis(ms)), shown);
        }
    }
}
