//! Schedules as cron writes them, in a time zone.
//!
//! Slots are named by local time, so that hosts whose tables of time zones differ name them alike. A fixed hour that
//! comes twice is one slot, at its first time; one that is skipped begins when the gap is over (and several in one
//! gap are one). If minute or hour begins with `*`, slots follow real time: a local time that comes twice is two
//! slots, told apart by the offset, and one that is skipped is none.

use croner::parser::{CronParser, Seconds, Year};
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};

use super::schedule::{Slot, early};

/// The longest expression.
const CHARS_MAX: usize = 256;
/// How many points of a schedule may lie within a day and an hour, by which local time may run back.
const STEPS_MAX: usize = 3_000;
/// How many changes of the offset are looked through for a point: some decades.
const SEGMENTS_MAX: usize = 128;

/// A cron expression in a time zone.
#[derive(Clone, Debug)]
pub(super) struct Cron {
    pattern: croner::Cron,
    zone: TimeZone,
    /// Whether slots follow real time.
    real: bool,
    text: String,
}

impl Cron {
    /// Reads five fields, and a time zone by its name.
    pub(super) fn new(expression: &str, zone: &str) -> Result<Self, String> {
        let fields: Vec<&str> = expression.split_whitespace().collect();
        if fields.len() != 5 || expression.len() > CHARS_MAX {
            return Err(format!("{expression:?} is no schedule: write five fields, minute hour day month weekday"));
        }
        let written = fields.join(" ");
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let pattern = parser.parse(&written).map_err(|error| format!("{expression:?} is no schedule: {error}"))?;
        let found = TimeZone::get(zone).map_err(|error| format!("{zone:?} is no time zone: {error}"))?;
        let real = fields.iter().take(2).any(|field| field.starts_with('*'));
        let cron = Self { pattern, zone: found, real, text: format!("cron {written} {zone}") };
        let never = |error| format!("{expression:?} never comes: {error}");
        cron.next_civil(DateTime::constant(2024, 1, 1, 0, 0, 0, 0), true).map_err(never)?;
        Ok(cron)
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn at(&self, now: u64) -> Result<Slot, String> {
        let (begins, name, order) = self.point_at(moment(now)?)?;
        let (before, ..) = self.point_at(minus_a_second(begins)?)?;
        let (begins, before) = (ms(begins), ms(before));
        Ok(Slot { order, begins, early: early(begins.saturating_sub(before)), name })
    }

    pub(super) fn after(&self, slot: &Slot) -> Result<Slot, String> {
        let begins = moment(slot.begins)?;
        let next = if self.real { self.real_after(begins)? } else { self.fixed_after(begins)? };
        self.at(ms(next))
    }

    pub(super) fn read(&self, name: &str) -> Option<Slot> {
        let begins = if self.real { name.parse().ok()? } else { self.instant(name.parse().ok()?).ok()? };
        // Its own name, or that of another slot which begins at the same moment.
        let mut slot = self.at(ms(begins)).ok()?;
        if !self.real {
            slot.order = order(name.parse().ok()?);
            name.clone_into(&mut slot.name);
        }
        Some(slot)
    }

    /// The point that a moment is after, or at: when it is, its name and its order.
    fn point_at(&self, now: Timestamp) -> Result<(Timestamp, String, i64), String> {
        if self.real {
            let at = self.real_at(now)?;
            let name = at.to_zoned(self.zone.clone()).strftime("%Y-%m-%dT%H:%M%:z").to_string();
            return Ok((at, name, at.as_second()));
        }
        // Local time may be behind that of a point that has come: it ran back since.
        let ahead = self.zone.to_datetime(now).checked_add(SignedDuration::from_hours(25)).map_err(told)?;
        let mut civil = self.previous_civil(ahead, true)?;
        for _ in 0..STEPS_MAX {
            let begins = self.instant(civil)?;
            if begins <= now {
                return Ok((begins, civil.strftime("%Y-%m-%dT%H:%M").to_string(), order(civil)));
            }
            civil = self.previous_civil(civil, false)?;
        }
        Err(format!("{}: too many slots a day", self.text))
    }

    fn fixed_after(&self, begins: Timestamp) -> Result<Timestamp, String> {
        let behind = self.zone.to_datetime(begins).checked_sub(SignedDuration::from_hours(25)).map_err(told)?;
        let mut civil = self.next_civil(behind, true)?;
        for _ in 0..STEPS_MAX {
            let at = self.instant(civil)?;
            if at > begins {
                return Ok(at);
            }
            civil = self.next_civil(civil, false)?;
        }
        Err(format!("{}: too many slots a day", self.text))
    }

    /// When a fixed local time comes: at first if it comes twice, when the gap is over if it is skipped.
    fn instant(&self, civil: DateTime) -> Result<Timestamp, String> {
        match self.zone.to_ambiguous_timestamp(civil).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(civil).map_err(told),
            AmbiguousOffset::Fold { before, .. } => before.to_timestamp(civil).map_err(told),
            AmbiguousOffset::Gap { before, .. } => {
                let within = before.to_timestamp(civil).map_err(told)?;
                Ok(self.changed_by(within)?.unwrap_or(within))
            }
        }
    }

    /// The last change of the offset, at this moment or before.
    fn changed_by(&self, at: Timestamp) -> Result<Option<Timestamp>, String> {
        let later = at.checked_add(SignedDuration::from_secs(1)).map_err(told)?;
        Ok(self.zone.preceding(later).next().map(|change| change.timestamp()))
    }

    fn real_at(&self, now: Timestamp) -> Result<Timestamp, String> {
        let mut at = now;
        for _ in 0..SEGMENTS_MAX {
            let offset = self.zone.to_offset(at);
            let change = self.changed_by(at)?;
            let civil = self.previous_civil(offset.to_datetime(at), true)?;
            let point = offset.to_timestamp(civil).map_err(told)?;
            match change.filter(|change| point < *change) {
                None => return Ok(point),
                Some(change) => at = minus_a_second(change)?,
            }
        }
        Err(format!("{}: no slot in decades", self.text))
    }

    fn real_after(&self, begins: Timestamp) -> Result<Timestamp, String> {
        let (mut at, mut inclusive) = (begins, false);
        for _ in 0..SEGMENTS_MAX {
            let offset = self.zone.to_offset(at);
            let change = self.zone.following(at).next().map(|change| change.timestamp());
            let civil = self.next_civil(offset.to_datetime(at), inclusive)?;
            let point = offset.to_timestamp(civil).map_err(told)?;
            match change.filter(|change| point >= *change) {
                None => return Ok(point),
                Some(change) => (at, inclusive) = (change, true),
            }
        }
        Err(format!("{}: no slot in decades", self.text))
    }

    fn previous_civil(&self, from: DateTime, inclusive: bool) -> Result<DateTime, String> {
        self.pattern.find_previous_occurrence(&from, inclusive).map_err(|error| format!("{}: {error}", self.text))
    }

    fn next_civil(&self, from: DateTime, inclusive: bool) -> Result<DateTime, String> {
        self.pattern.find_next_occurrence(&from, inclusive).map_err(|error| format!("{}: {error}", self.text))
    }
}

fn told(error: jiff::Error) -> String {
    format!("the time is out of range: {error}")
}

/// A moment in whole seconds: no slot begins within one.
fn moment(ms: u64) -> Result<Timestamp, String> {
    Timestamp::from_second(i64::try_from(ms / 1_000).unwrap_or(i64::MAX)).map_err(told)
}

fn ms(at: Timestamp) -> u64 {
    u64::try_from(at.as_millisecond()).unwrap_or(0)
}

fn minus_a_second(at: Timestamp) -> Result<Timestamp, String> {
    at.checked_sub(SignedDuration::from_secs(1)).map_err(told)
}

/// Local times in order, whatever the zone.
fn order(civil: DateTime) -> i64 {
    jiff::tz::Offset::UTC.to_timestamp(civil).map_or(i64::MAX, Timestamp::as_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400_000;

    fn berlin(expression: &str) -> Cron {
        Cron::new(expression, "Europe/Berlin").unwrap()
    }

    fn at(text: &str) -> u64 {
        ms(text.parse().unwrap())
    }

    /// The names of the slots from one moment to another, as callers meet them minute by minute; each with its
    /// beginning.
    fn slots(cron: &Cron, from: &str, to: &str) -> Vec<(String, String)> {
        let mut met: Vec<Slot> = Vec::new();
        for now in (at(from)..=at(to)).step_by(60_000) {
            let slot = cron.at(now).unwrap();
            assert!(slot.begins <= now, "{slot:?}");
            assert_eq!(cron.read(&slot.name).as_ref(), Some(&slot), "it is read as it is named");
            let next = cron.after(&slot).unwrap();
            assert!(next.begins > now && next.order > slot.order, "{slot:?} {next:?}");
            assert_eq!(cron.at(next.begins).unwrap(), next, "the next is what is met when it begins");
            if met.last() != Some(&slot) {
                assert!(met.last().is_none_or(|last| last.order < slot.order), "forward only: {met:?} {slot:?}");
                met.push(slot);
            }
        }
        met.into_iter().map(|slot| (slot.name, moment(slot.begins).unwrap().to_string())).collect()
    }

    fn named(slots: &[(String, String)]) -> Vec<&str> {
        slots.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn a_fixed_hour_that_comes_twice_is_one_slot_at_its_first_time() {
        let met = slots(&berlin("30 2 * * *"), "2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z");
        assert_eq!(named(&met), ["2026-10-24T02:30", "2026-10-25T02:30", "2026-10-26T02:30"]);
        assert_eq!(met[1].1, "2026-10-25T00:30:00Z", "summer time");
        assert_eq!(met[2].1, "2026-10-26T01:30:00Z");
    }

    #[test]
    fn a_fixed_hour_that_is_skipped_runs_after_the_gap() {
        let met = slots(&berlin("30 2,3 * * *"), "2026-03-28T12:00:00Z", "2026-03-29T12:00:00Z");
        assert_eq!(named(&met), ["2026-03-28T03:30", "2026-03-29T02:30", "2026-03-29T03:30"]);
        assert_eq!(met[1].1, "2026-03-29T01:00:00Z", "when the gap is over");
        assert_eq!(met[2].1, "2026-03-29T01:30:00Z");
        let met = slots(&berlin("0,30 2 * * *"), "2026-03-28T12:00:00Z", "2026-03-29T12:00:00Z");
        assert_eq!(named(&met), ["2026-03-28T02:30", "2026-03-29T02:30"], "several in one gap are one");
    }

    #[test]
    fn slots_that_begin_with_a_star_follow_real_time() {
        for (expression, each_ms) in [("*/30 * * * *", 1_800_000), ("15 * * * *", 3_600_000)] {
            for (from, to) in
                [("2026-10-24T22:00:00Z", "2026-10-25T06:00:00Z"), ("2026-03-28T22:00:00Z", "2026-03-29T06:00:00Z")]
            {
                let met = slots(&berlin(expression), from, to);
                let begin: Vec<u64> = met.iter().map(|(_, begins)| at(begins)).collect();
                assert!(begin.windows(2).all(|two| two[1] - two[0] == each_ms), "{expression}: {met:?}");
            }
        }
        let met = slots(&berlin("30 * * * *"), "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z");
        assert_eq!(named(&met), ["2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00"]);
    }

    #[test]
    fn days_that_come_rarely_are_found() {
        let met = Cron::new("0 0 29 2 *", "UTC").unwrap().at(at("2027-06-01T00:00:00Z")).unwrap();
        assert_eq!(met.name, "2024-02-29T00:00");
        assert_eq!(met.early, 60_000);
        let weekly = berlin("0 3 * * MON");
        let slot = weekly.at(at("2026-11-18T08:00:00Z")).unwrap();
        assert_eq!(
            (slot.name.as_str(), weekly.after(&slot).unwrap().begins - slot.begins),
            ("2026-11-16T03:00", 7 * DAY)
        );
    }

    #[test]
    fn what_is_no_schedule_is_refused() {
        for (expression, zone) in [
            ("", "UTC"),
            ("* * * *", "UTC"),
            ("* * * * * *", "UTC"),
            ("61 * * * *", "UTC"),
            ("@daily", "UTC"),
            ("0 0 31 2 *", "UTC"),
            ("0 3 * * *", "Europe/Atlantis"),
        ] {
            assert!(Cron::new(expression, zone).is_err(), "{expression} {zone}");
        }
        assert_eq!(Cron::new(" 0  3 * * *", "UTC").unwrap().text(), "cron 0 3 * * * UTC");
    }
}
