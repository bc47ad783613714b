//! When a job is due: slots, named by the store's time and never by a host's.

use std::time::Duration;

use super::utc;

/// The longest early window: hosts run ahead of the store by less.
const EARLY_MAX_MS: u64 = 60_000;
/// The shortest period.
const PERIOD_MIN: Duration = Duration::from_secs(1);
/// The longest: a century.
const PERIOD_MAX: Duration = Duration::from_secs(36_525 * 86_400);

/// One period, or one point of a cron schedule. It lasts until the next begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// Its place among the slots of its schedule.
    pub(super) order: i64,
    /// When it begins, in milliseconds of the store's clock.
    pub(super) begins: u64,
    /// How long before that a caller means this slot and not the one before.
    pub(super) early: u64,
    /// What it is called.
    pub(super) name: String,
}

/// When a job is due.
#[derive(Clone, Debug)]
pub(super) enum Schedule {
    /// Periods of so many milliseconds, counted from 1970 in UTC.
    Every(u64),
    #[cfg(feature = "cron")]
    Cron(Box<super::cron::Cron>),
}

impl Schedule {
    pub(super) fn every(period: Duration) -> Result<Self, String> {
        if !(PERIOD_MIN..=PERIOD_MAX).contains(&period) || !period.subsec_nanos().is_multiple_of(1_000_000) {
            return Err(format!("every {period:?}: a period is 1 s to 36525 days, in whole milliseconds"));
        }
        Ok(Self::Every(u64::try_from(period.as_millis()).unwrap_or(u64::MAX)))
    }

    /// What it is called in records: the same for the same schedule, on every host.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Every(ms) => {
                let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
                let fitting = units.iter().find(|(unit, _)| ms.is_multiple_of(*unit));
                fitting.map_or_else(String::new, |(unit, word)| format!("every {}{word}", ms / unit))
            }
            #[cfg(feature = "cron")]
            Self::Cron(cron) => cron.text().to_owned(),
        }
    }

    /// The slot that a moment is in.
    pub(super) fn at(&self, now: u64) -> Result<Slot, String> {
        match self {
            Self::Every(period) => Ok(periodic(*period, now / period)),
            #[cfg(feature = "cron")]
            Self::Cron(cron) => cron.at(now),
        }
    }

    /// The slot after this one.
    pub(super) fn after(&self, slot: &Slot) -> Result<Slot, String> {
        match self {
            Self::Every(period) => Ok(periodic(*period, slot.begins / period + 1)),
            #[cfg(feature = "cron")]
            Self::Cron(cron) => cron.after(slot),
        }
    }

    /// The slot of this name; none if it is no slot of this schedule.
    pub(super) fn read(&self, name: &str) -> Option<Slot> {
        match self {
            Self::Every(period) => {
                let begins = utc::read(name).filter(|begins| begins.is_multiple_of(*period))?;
                Some(periodic(*period, begins / period))
            }
            #[cfg(feature = "cron")]
            Self::Cron(cron) => cron.read(name),
        }
    }

    /// The slot that a caller means at this moment: the present one, or the next if that begins so soon that the
    /// caller's clock may be ahead of the store's.
    pub(super) fn meant_at(&self, now: u64) -> Result<Slot, String> {
        let present = self.at(now)?;
        let next = self.after(&present)?;
        Ok(if next.begins.saturating_sub(now) <= next.early { next } else { present })
    }
}

/// The early window before a slot that begins so long after the one before.
pub(super) fn early(period: u64) -> u64 {
    (period / 10).min(EARLY_MAX_MS)
}

fn periodic(period: u64, number: u64) -> Slot {
    let begins = number.saturating_mul(period);
    Slot { order: i64::try_from(number).unwrap_or(i64::MAX), begins, early: early(period), name: utc::text(begins) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;
    const AT: u64 = 1_792_888_496_000; // 2026-10-25T00:34:56Z

    #[test]
    fn periods_count_from_1970_and_are_named_by_their_beginning() {
        let hourly = Schedule::every(Duration::from_secs(3_600)).unwrap();
        assert_eq!(hourly.text(), "every 1h");
        let slot = hourly.at(AT).unwrap();
        assert_eq!((slot.name.as_str(), slot.early), ("2026-10-25T00:00:00Z", 60_000));
        assert_eq!(hourly.read(&slot.name), Some(slot.clone()));
        assert_eq!(hourly.after(&slot).unwrap().begins, slot.begins + HOUR);
        assert_eq!(hourly.read("2026-10-25T00:30:00Z"), None, "no slot of it");
        for (period, text) in [(90, "every 90s"), (172_800, "every 2d"), (60, "every 1m")] {
            assert_eq!(Schedule::every(Duration::from_secs(period)).unwrap().text(), text);
        }
        for bad in [Duration::ZERO, Duration::from_millis(999), Duration::from_micros(1_000_001), Duration::MAX] {
            assert!(Schedule::every(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_caller_means_the_next_slot_within_a_tenth_of_the_period_or_a_minute() {
        let hourly = Schedule::every(Duration::from_secs(3_600)).unwrap();
        let next = hourly.at(AT + HOUR).unwrap();
        assert_eq!(hourly.meant_at(next.begins - 60_001).unwrap().order, next.order - 1);
        assert_eq!(hourly.meant_at(next.begins - 60_000).unwrap(), next);
        let often = Schedule::every(Duration::from_secs(10)).unwrap();
        let next = often.at(AT + 10_000).unwrap();
        assert_eq!(often.meant_at(next.begins - 1_001).unwrap().order, next.order - 1);
        assert_eq!(often.meant_at(next.begins - 1_000).unwrap(), next);
    }
}
