//! Moments of the store's clock as text, in UTC: `2026-11-18T08:00:00Z`, with milliseconds only where there are some.

const DAY_MS: u64 = 86_400_000;

/// The text of a moment, in milliseconds since 1970.
pub(super) fn text(ms: u64) -> String {
    let (year, month, day) = civil(ms / DAY_MS);
    let of_day = ms % DAY_MS;
    let (seconds, rest) = (of_day / 1_000, of_day % 1_000);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    let fraction = if rest == 0 { String::new() } else { format!(".{rest:03}") };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// The moment of such a text.
pub(super) fn read(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(time, ':')?;
    let days = days(year, month, day)?;
    let rest = numbers::<1>(fraction, '.')?[0];
    let ms = days * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1_000 + rest;
    (self::text(ms) == text).then_some(ms)
}

fn numbers<const N: usize>(text: &str, between: char) -> Option<[u64; N]> {
    let parts: Vec<u64> =
        text.split(between).map(|part| part.parse::<u32>().ok().map(u64::from)).collect::<Option<_>>()?;
    parts.try_into().ok()
}

/// Year, month and day of a number of days since 1970. Years are counted from March on, so that a leap day is the last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

/// The days since 1970 of a date from 1970 to 9999.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let is_date = (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    let year = if month <= 2 { year - u64::from(is_date) } else { year };
    let from_march = (month + 9) % 12;
    let of_year = (153 * from_march + 2) / 5 + day.saturating_sub(1);
    let days = year / 400 * 146_097 + year % 400 * 365 + year % 400 / 4 - year % 400 / 100 + of_year;
    is_date.then(|| days.saturating_sub(719_468))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_come_back_as_they_were() {
        for (ms, written) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_792_888_496_000, "2026-10-25T00:34:56Z"),
            (1_792_888_496_007, "2026-10-25T00:34:56.007Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z"),
        ] {
            assert_eq!(text(ms), written);
            assert_eq!(read(written), Some(ms), "{written}");
        }
        let mut ms = 0;
        while ms < 100 * 366 * DAY_MS {
            assert_eq!(read(&text(ms)), Some(ms), "{}", text(ms));
            ms += 7_777_777_777;
        }
    }

    #[test]
    fn what_is_no_moment_is_none() {
        for bad in
            ["", "Z", "2026-02-30T00:00:00Z", "2026-10-25T00:00:00", "2026-13-01T00:00:00Z", "1969-01-01T00:00:00Z"]
        {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
