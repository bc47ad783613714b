//! Whether a caller runs its slot: a pure function of the record, the slot, the time and who holds the name.

use super::record::{Entry, Record};
use super::schedule::{Schedule, Slot};

/// How far ahead of the store's clock the run of another schedule may have started.
const AHEAD_MAX_MS: u64 = 60_000;

/// What a caller does whose slot is over when it is granted the name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missed {
    /// It skips.
    #[default]
    Skip,
    /// It runs as the slot that is present then.
    Run,
}

/// What the caller asked for.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) schedule: Schedule,
    pub(super) missed: Missed,
    /// How many further attempts a failed slot has.
    pub(super) retry: u32,
    /// Whether another schedule than the recorded one is meant.
    pub(super) reschedule: bool,
}

/// Who holds the name, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// This caller.
    Us,
    /// Whoever wrote the record: its token is the holder's.
    Recorder {
        /// Whether its claim was renewed since it was first seen.
        renewed: bool,
    },
    /// Somebody else.
    Other,
    /// Nobody has looked.
    Unknown,
}

/// What a caller does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Run { slot: Slot, attempt: u32 },
    Skip(Why),
    WaitForSlot { until: u64 },
    WaitForHolder,
    Refuse(Refusal),
}

/// Why a slot is skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// It was run.
    Done(Entry),
    /// It is being run, or a later one is.
    Runs(Entry),
    /// The run of an earlier slot goes on.
    PredecessorRuns(Entry),
    /// It was tried as often as allowed.
    Failed(Entry),
    /// Its run has ended, nobody knows how, and was not to be tried again.
    Unended(Entry),
    /// It was over when the caller's turn came; which is present.
    Over { present: String },
    /// It began before the last run of another schedule.
    Rescheduled(Entry),
}

/// Why nothing can be decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    OtherSchedule {
        recorded: String,
    },
    /// The record is ahead of the store's clock.
    Ahead {
        slot: String,
        by_ms: u64,
    },
    /// The store's clock went back since the caller asked.
    WentBack {
        by_ms: u64,
    },
    /// The recorded slot is none of its schedule.
    Unreadable {
        slot: String,
    },
}

/// Decides for a caller whose slot is `asked`, at the store's time `now`.
pub(super) fn decide(
    record: &Record,
    asked: &Slot,
    now: u64,
    rules: &Rules,
    holder: Holder,
) -> Result<Decision, String> {
    let last = record.last();
    let of_another = |last: &&Entry| last.schedule != rules.schedule.text();
    if let Some(other) = last.filter(of_another).filter(|_| !rules.reschedule) {
        return Ok(Decision::Refuse(Refusal::OtherSchedule { recorded: other.schedule.clone() }));
    }
    if now < asked.begins {
        let by_ms = asked.begins - now;
        let is_early = by_ms <= asked.early;
        let wait = Decision::WaitForSlot { until: asked.begins };
        return Ok(if is_early { wait } else { Decision::Refuse(Refusal::WentBack { by_ms }) });
    }
    let mut slot = asked.clone();
    if holder == Holder::Us {
        let present = rules.schedule.at(now)?;
        if present.order > slot.order {
            if rules.missed == Missed::Skip {
                return Ok(Decision::Skip(Why::Over { present: present.name }));
            }
            slot = present;
        }
    }
    let Some(last) = last else { return Ok(first_run(slot, None, holder)) };
    if of_another(&last) {
        return Ok(after_another_schedule(slot, last, now, holder));
    }
    let Some(recorded) = rules.schedule.read(&last.slot) else {
        return Ok(Decision::Refuse(Refusal::Unreadable { slot: last.slot.clone() }));
    };
    Ok(if recorded.order < slot.order {
        first_run(slot, Some(last), holder)
    } else if recorded.order == slot.order {
        again(slot, last, rules.retry, holder)
    } else if recorded.begins > now {
        let by_ms = recorded.begins - now;
        let wait = Decision::WaitForSlot { until: recorded.begins };
        let ahead = Refusal::Ahead { slot: recorded.name, by_ms };
        if by_ms <= recorded.early { wait } else { Decision::Refuse(ahead) }
    } else if holder == (Holder::Recorder { renewed: true }) && last.is_unended() {
        Decision::Skip(Why::Runs(last.clone()))
    } else {
        // Its slot is over: what is to become of that is decided at its grant.
        Decision::WaitForHolder
    })
}

/// A slot that nobody has run.
fn first_run(slot: Slot, last: Option<&Entry>, holder: Holder) -> Decision {
    match (holder, last) {
        (Holder::Us, _) => Decision::Run { slot, attempt: 1 },
        (Holder::Recorder { renewed: true }, Some(last)) if last.is_unended() => {
            Decision::Skip(Why::PredecessorRuns(last.clone()))
        }
        _ => Decision::WaitForHolder,
    }
}

/// A slot that somebody has begun to run.
fn again(slot: Slot, last: &Entry, retry: u32, holder: Holder) -> Decision {
    if last.is_ok() {
        return Decision::Skip(Why::Done(last.clone()));
    }
    let may_live = matches!(holder, Holder::Recorder { .. } | Holder::Unknown);
    if last.is_unended() && may_live {
        let runs = holder == Holder::Recorder { renewed: true };
        return if runs && retry == 0 { Decision::Skip(Why::Runs(last.clone())) } else { Decision::WaitForHolder };
    }
    // It failed, or its claim is gone and its end was not recorded: that counts as a failure.
    match last.attempt.checked_add(1).filter(|_| last.attempt <= retry) {
        Some(attempt) if holder == Holder::Us => Decision::Run { slot, attempt },
        Some(_) => Decision::WaitForHolder,
        None if last.is_unended() => Decision::Skip(Why::Unended(last.clone())),
        None => Decision::Skip(Why::Failed(last.clone())),
    }
}

/// Slots only go forward, from one schedule to another too.
fn after_another_schedule(slot: Slot, last: &Entry, now: u64, holder: Holder) -> Decision {
    let started = last.started_ms();
    if started > now.saturating_add(AHEAD_MAX_MS) {
        return Decision::Refuse(Refusal::Ahead { slot: last.slot.clone(), by_ms: started - now });
    }
    let decision = first_run(slot.clone(), Some(last), holder);
    let began_before = slot.begins <= started;
    match decision {
        Decision::Run { .. } | Decision::WaitForHolder if began_before => {
            Decision::Skip(Why::Rescheduled(last.clone()))
        }
        decision => decision,
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
