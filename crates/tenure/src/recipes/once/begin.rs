//! From the wish to run a slot to its recorded start.

use std::pin::pin;
use std::time::{Duration, UNIX_EPOCH};

use super::attempt::{Attempt, Begun};
use super::decide::{Decision, Holder, Refusal, Rules, Why, decide};
use super::record::{Entry, Record};
use super::schedule::Slot;
use super::skipped::Skipped;
use super::{Once, utc};
use crate::clock::Moment;
use crate::engine::Guard;
use crate::error::{Error, ErrorKind, Result};
use crate::explain::{Renewal, Teller};
use crate::machine::{NameView, Shape};
use crate::token::Token;

/// How often a slot is waited for anew because the store's clock went back a little.
const WAITS_MAX: usize = 64;
/// The first look at whoever holds the name comes so soon: most are gone by then.
const FIRST_LOOK: Duration = Duration::from_millis(50);

/// Stores look for claims that are over every second or so: for so long one may be there that nobody renews, besides
/// what leases lag by.
const LAG: Duration = Duration::from_secs(1);

/// The holder when it was first seen.
struct FirstSeen {
    token: Token,
    view: NameView,
    /// After it was answered.
    at: Moment,
}

impl Once {
    /// Waits for the slot, and for whoever is in the way; records the start. [`run`](Self::run) does this and the rest.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire). [`ErrorKind::Invalid`] for a schedule that is none, and where the
    /// store keeps no memos or does not tell the time. [`ErrorKind::Conflict`] if another schedule is in use under
    /// this name. [`ErrorKind::Store`] if the record is ahead of the store's clock. [`ErrorKind::Replicas`] if too
    /// few replicas have the record: nothing was started.
    ///
    /// # Cancel safety
    ///
    /// Cancelling loses the place in the queue; a start that was recorded by then counts as a failure.
    pub async fn begin(&self) -> Result<Begun> {
        let rules = self.rules()?;
        let mut now = self.now().await?;
        // Of the first answer, whatever it waits.
        let slot = rules.schedule.meant_at(now).map_err(|problem| self.error(ErrorKind::Store, problem))?;
        for _ in 0..WAITS_MAX {
            let (_, record) = self.record().await?;
            match self.decide(&record, &slot, now, &rules, Holder::Unknown)? {
                Decision::WaitForSlot { until } => now = self.wait(until, now).await?,
                Decision::Skip(why) => return Ok(Begun::Skipped(Skipped::new(&slot.name, &why))),
                _ => {
                    return match self.claim(&slot, &rules).await? {
                        Ok(guard) => self.granted(guard, &slot, &rules).await,
                        Err(why) => Ok(Begun::Skipped(Skipped::new(&slot.name, &why))),
                    };
                }
            }
        }
        Err(self.never_comes(&slot))
    }

    /// Claims the name, looking meanwhile at who holds it.
    async fn claim(&self, slot: &Slot, rules: &Rules) -> Result<std::result::Result<Guard, Why>> {
        let mut acquiring = pin!(self.lock.acquire());
        let (mut seen, mut pause) = (None, FIRST_LOOK);
        loop {
            tokio::select! {
                biased;
                guard = &mut acquiring => return guard.map(Ok),
                skip = self.look(slot, rules, &mut seen, pause) => match skip {
                    Ok(Some(why)) => return Ok(Err(why)),
                    // The claim itself rides outages out; these are what it cannot come true for.
                    Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Store) => return Err(error),
                    Ok(None) | Err(_) => pause = self.lock.ttl_within(&self.tenure.capabilities()) / 3,
                },
            }
        }
    }

    /// Looks at the holder after a pause. Answers why to skip, if there is a reason.
    async fn look(
        &self,
        slot: &Slot,
        rules: &Rules,
        seen: &mut Option<FirstSeen>,
        pause: Duration,
    ) -> Result<Option<Why>> {
        let clock = self.tenure.clock();
        self.tenure.pause_until(clock.now() + pause).await;
        let asked = clock.now();
        let view = self.tenure.inspect(&self.name).await?;
        let answered = clock.now();
        let (written_under, record) = self.record().await?;
        let now = self.now().await?;
        let holder = self.holder(view, written_under, (asked, answered), seen);
        match self.decide(&record, slot, now, rules, holder) {
            Ok(Decision::Skip(why)) => Ok(Some(why)),
            Ok(_) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Who holds the name by this view, and whether its claim was renewed since it was first seen.
    fn holder(
        &self,
        view: NameView,
        written_under: Option<Token>,
        (asked, answered): (Moment, Moment),
        seen: &mut Option<FirstSeen>,
    ) -> Holder {
        let held = view.holders.first().filter(|held| held.shape == Some(Shape::Exclusive));
        let Some((held, token)) = held.and_then(|held| Some((held, held.token?))) else { return Holder::Other };
        if Some(token) != written_under {
            return Holder::Other;
        }
        let Some(first) = seen.as_ref().filter(|first| first.token == token) else {
            *seen = Some(FirstSeen { token, view, at: answered });
            return Holder::Recorder { renewed: false };
        };
        let apart = asked.since(first.at);
        let teller = Teller::of(self.tenure.guarantees().store);
        let renews = teller.judge(&first.view, &view, apart).first() == Some(&Renewal::Renewing);
        // A claim that is still there when one without renewals is surely gone was renewed, whatever the store tells of
        // that. Only the holder's own ttl counts: it may be longer than ours.
        let ttl = held.expires_in.zip(held.renewed).map(|(left, renewed)| left + renewed);
        let lag = 2 * self.tenure.capabilities().lease_lag + LAG;
        Holder::Recorder { renewed: renews || ttl.is_some_and(|ttl| apart > ttl + lag) }
    }

    /// The name is ours: records the start, or gives it back.
    async fn granted(&self, guard: Guard, slot: &Slot, rules: &Rules) -> Result<Begun> {
        for _ in 0..WAITS_MAX {
            let now = self.now().await?;
            let (_, before) = self.record().await?;
            match self.decide(&before, slot, now, rules, Holder::Us)? {
                Decision::Run { slot, attempt } => {
                    let record = before.with(self.entry(&slot, attempt, now, rules));
                    return Ok(Begun::Run(Attempt::start(&self.tenure, guard, (record, before), now).await?));
                }
                Decision::Skip(why) => {
                    // Whether or not that is confirmed, nothing was run.
                    drop(guard);
                    return Ok(Begun::Skipped(Skipped::new(&slot.name, &why)));
                }
                Decision::WaitForSlot { until } => {
                    guard.protect(self.wait(until, now)).await??;
                }
                Decision::WaitForHolder | Decision::Refuse(_) => break,
            }
        }
        Err(self.never_comes(slot))
    }

    fn entry(&self, slot: &Slot, attempt: u32, now: u64, rules: &Rules) -> Entry {
        Entry {
            schedule: rules.schedule.text(),
            slot: slot.name.clone(),
            attempt,
            by: self.lock.shown_label().to_owned(),
            started: utc::text(now),
            ended: None,
            outcome: None,
        }
    }

    /// Decides; a refusal is an error.
    fn decide(&self, record: &Record, slot: &Slot, now: u64, rules: &Rules, holder: Holder) -> Result<Decision> {
        let decided = decide(record, slot, now, rules, holder);
        let refusal = match decided.map_err(|problem| self.error(ErrorKind::Store, problem))? {
            Decision::Refuse(refusal) => refusal,
            decision => return Ok(decision),
        };
        let (kind, message) = match refusal {
            Refusal::OtherSchedule { recorded } => {
                let schedule = rules.schedule.text();
                let message = format!(
                    "it was run as `{recorded}` until now, not as `{schedule}`: use another name, or replace the \
                     schedule (reschedule) on all hosts"
                );
                (ErrorKind::Conflict, message)
            }
            Refusal::Ahead { slot, by_ms } => {
                let by = Duration::from_millis(by_ms);
                (ErrorKind::Store, format!("slot {slot} was run already, and the store's clock is {by:?} behind it"))
            }
            Refusal::WentBack { by_ms } => {
                let by = Duration::from_millis(by_ms);
                (ErrorKind::Store, format!("the store's clock went back: slot {} is {by:?} ahead of it", slot.name))
            }
            Refusal::Unreadable { slot } => {
                let schedule = rules.schedule.text();
                (ErrorKind::Store, format!("the record has the slot {slot:?}, which is none of `{schedule}`"))
            }
        };
        Err(self.error(kind, message))
    }

    /// Waits until the store's clock shows `until`, about; answers what it shows then.
    async fn wait(&self, until: u64, now: u64) -> Result<u64> {
        let pause = Duration::from_millis(until.saturating_sub(now));
        self.tenure.pause_until(self.tenure.clock().now() + pause).await;
        self.now().await
    }

    fn never_comes(&self, slot: &Slot) -> Error {
        self.error(ErrorKind::Store, format!("the store's clock does not reach the slot {}", slot.name))
    }

    /// The store's time, in milliseconds since 1970.
    async fn now(&self) -> Result<u64> {
        let since = self.tenure.time().await?.duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}
