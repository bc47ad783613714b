//! What a run's arguments come to, checked before anything is touched.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::time::Duration;

use tenure::backend::Capabilities;
use tenure::clock::{Moment, micros};
use tenure::{Lock, Name, Replicas, Session, TTL_DEFAULT};

use super::hold::Hold;
use super::holds::Holds;
use super::purpose::{Due, Job, Purpose};
use crate::args::{Elect, Once, Replication, Run, Sharing, Waiting};
use crate::failure::Failure;
use crate::held::Held;
use crate::metrics_file::MetricsFile;
use crate::store::Store;
use crate::wait::Wait;
use crate::{duration, env, groups, label};

/// The longest grace there is by default.
const GRACE_DEFAULT_MAX: Duration = Duration::from_secs(5);
/// The longest time that is set aside for killing.
const KILLING_MAX: Duration = Duration::from_millis(400);

/// A run, ready to go.
#[derive(Debug)]
pub(crate) struct Plan {
    /// In byte order, each once: two runs that want the same names in another order cannot block each other.
    pub(super) names: Vec<Name>,
    pub(super) store: Store,
    pub(super) ttl: Duration,
    pub(super) grace: Duration,
    pub(super) wait: Wait,
    pub(super) label: String,
    pub(super) command: Vec<OsString>,
    pub(super) held: Held,
    pub(super) json: bool,
    sharing: Sharing,
    replicas: Option<Replicas>,
    /// The ttl and the grace that were asked for.
    asked: (Option<Duration>, Option<Duration>),
    pub(super) metrics: Option<MetricsFile>,
    pub(super) purpose: Purpose,
}

impl Plan {
    pub(crate) fn new(args: Run, store: Store, json: bool) -> Result<Self, Failure> {
        let command = match args.line {
            Some(line) => vec![shell(), "-c".into(), line],
            None => args.command,
        };
        let names = args.names.iter().map(Name::new).collect::<Result<BTreeSet<_>, _>>()?;
        store.warn_if_alone(json);
        let store = store.with_groups(groups::checked(&args.groups)?);
        let asked = (args.ttl, args.grace);
        let ttl = args.ttl.unwrap_or(TTL_DEFAULT);
        let label = args.label.unwrap_or_else(|| command.first().map(|c| label::of_run(c)).unwrap_or_default());
        Ok(Self {
            names: names.into_iter().collect(),
            store,
            ttl,
            grace: grace(args.grace, ttl, Duration::ZERO)?,
            wait: Wait::of(args.waiting.wait, args.waiting.no_wait),
            label,
            command,
            held: Held::from_env()?,
            json,
            sharing: args.sharing,
            replicas: args.replication.min_replicas,
            asked,
            metrics: args.metrics_file.map(MetricsFile::prepare).transpose()?,
            purpose: Purpose::Run,
        })
    }

    /// A command that runs while it leads.
    pub(crate) fn of_leader(args: Elect, store: Store, json: bool) -> Result<Self, Failure> {
        let run = alone(args.name, args.command, args.ttl, args.grace, args.label, args.replication);
        Ok(Self { purpose: Purpose::Lead { once: args.once, address: args.address }, ..Self::new(run, store, json)? })
    }

    /// A command that runs once per slot.
    pub(crate) fn of_job(args: Once, store: Store, json: bool) -> Result<Self, Failure> {
        let due = match (args.every, args.cron) {
            (Some(period), _) => Due::Every(period),
            (None, Some(expression)) => Due::Cron { expression, zone: args.tz.unwrap_or_else(|| "UTC".to_owned()) },
            (None, None) => return Err(Failure::usage("say when it is due: --every, or --cron")),
        };
        let (missed, retry, reschedule, timeout) = (args.missed, args.retry, args.reschedule, args.timeout);
        let job = Job { due, missed, retry, reschedule, timeout };
        let run = alone(args.name, args.command, args.ttl, args.grace, args.label, args.replication);
        Ok(Self { purpose: Purpose::Once(job), ..Self::new(run, store, json)? })
    }

    /// Within a run that holds the name it would wait for that run, and the run for it.
    pub(super) fn refuse_nested(&self) -> Result<(), Failure> {
        let held = self.names.iter().find(|name| self.held.of(&self.store.shown(), name).is_some());
        held.map_or(Ok(()), |name| {
            Err(Failure::usage(format!("{name}: a run around this one holds it, so its turn would never come"))
                .of(name))
        })
    }

    /// When what runs within a lease is killed: a little before its deadline. On a busy machine it takes a while
    /// until the guardian runs, has found everybody, and the last of them is gone.
    pub(super) fn killed_by(&self, deadline: Moment) -> Moment {
        let killing = (self.ttl / 25).min(KILLING_MAX);
        Moment(deadline.as_micros().saturating_sub(micros(killing)))
    }

    /// What was re-entered may live by a shorter lease than a run of its own would: the time to end it is taken from
    /// that.
    pub(super) fn re_entered(&mut self, lease: Duration) {
        self.ttl = self.ttl.min(lease);
        self.grace = self.grace.min(lease / 5);
    }

    /// Brings what was not asked for within what the store can do, and refuses what was asked for beyond it.
    pub(super) fn fit(&mut self, store: &Capabilities) -> Result<(), Failure> {
        let (ttl, asked_grace) = self.asked;
        // One that was asked for is refused when it is claimed with, with the store's limits.
        self.ttl = ttl.unwrap_or_else(|| store.nearest_ttl(TTL_DEFAULT));
        self.grace = grace(asked_grace, self.ttl, store.lease_lag)?;
        Ok(())
    }

    /// What it locks, as people are told it.
    pub(super) fn title(&self) -> String {
        self.names.iter().map(Name::as_str).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn replicas(&self) -> Option<Replicas> {
        self.replicas
    }

    /// The lock to take, as a claim of this session.
    pub(super) fn lock(&self, session: &Session, name: &Name) -> Lock {
        let lock = self.sharing.lock(session, name).ttl(self.ttl);
        match self.replicas {
            Some(replicas) => lock.min_replicas(replicas),
            None => lock,
        }
    }

    /// Whether it may share the claim of the run around it. One that asks for replicas may not: nobody would ask for
    /// them when that claim is renewed. What the store lacks is refused as it is outside a run.
    pub(super) fn can_share(&self, name: &Name, store: &Capabilities) -> Result<bool, Failure> {
        match (self.sharing.is_exclusive(), self.replicas) {
            (true, Some(_)) if store.replicas => Err(Failure::usage(format!(
                "{name}: --min-replicas within a run that holds it already: this store shares that run's lock, so ask \
                 for replicas there"
            ))),
            (true, None) => Ok(true),
            _ => Ok(false),
        }
    }

    /// What the command finds in its environment; `None` unsets.
    pub(super) fn environment(&self, holds: &Holds) -> Result<BTreeMap<String, Option<String>>, Failure> {
        let held = holds.iter().fold(self.held.clone(), |held, hold| held.and(self.store.shown(), hold));
        let held = serde_json::to_string(&held)
            .map_err(|error| Failure::usage(format!("${} cannot be written: {error}", env::HELD)))?;
        // Each of several has its own: `$TENURE_HELD` tells them.
        let hold = holds.single();
        let term = matches!(self.purpose, Purpose::Lead { .. }).then_some(env::TERM);
        let term = term.map(|name| (name, hold.and_then(Hold::token).map(|token| token.to_string())));
        let all = [
            (env::NAME, hold.map(|hold| hold.name().to_string())),
            (env::TOKEN, hold.and_then(Hold::token).map(|token| token.to_string())),
            (env::OWNER, hold.map(|hold| hold.owner().to_string())),
            (env::URL, Some(self.store.url().to_owned())),
            (env::HELD, Some(held)),
            (env::ON, None),
        ];
        Ok(all.into_iter().chain(term).map(|(name, value)| (name.to_owned(), value)).collect())
    }
}

/// The arguments of a run of one name that waits for ever.
fn alone(
    name: String,
    command: Vec<OsString>,
    ttl: Option<Duration>,
    grace: Option<Duration>,
    label: Option<String>,
    replication: Replication,
) -> Run {
    Run {
        names: vec![name],
        ttl,
        waiting: Waiting { wait: None, no_wait: false, conflict_exit_code: None },
        replication,
        sharing: Sharing { shared: false, permits: None },
        grace,
        label,
        metrics_file: None,
        groups: Vec::new(),
        command,
        line: None,
    }
}

/// What reads a line, as `flock -c` has it.
fn shell() -> OsString {
    std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into())
}

/// What of a ttl is left for the lag and the grace. Where leases lag they are renewed every twelfth of the ttl, and
/// what is known of one is up to a twelfth older; a fifth is for renewals that take their time.
fn lease(ttl: Duration) -> Duration {
    ttl * 3 / 5
}

/// The shortest ttl that leaves room for a grace, in whole milliseconds.
fn shortest_ttl(grace: Duration, lag: Duration) -> Duration {
    let ttl = (grace * 3).max((grace + lag) * 5 / 3);
    Duration::from_millis(u64::try_from(ttl.as_micros().div_ceil(1000)).unwrap_or(u64::MAX))
}

/// The time from SIGTERM to SIGKILL. It is taken from the end of the ttl. What leases lag by is not there to be used,
/// and renewals need the rest.
fn grace(asked: Option<Duration>, ttl: Duration, lag: Duration) -> Result<Duration, Failure> {
    let longest = (ttl / 3).min(lease(ttl).saturating_sub(lag));
    let Some(grace) = asked else { return Ok((ttl / 5).min(GRACE_DEFAULT_MAX).min(longest)) };
    if grace <= longest {
        return Ok(grace);
    }
    let limit = if lag.is_zero() {
        format!("at most a third of it, {}", duration::limit(longest))
    } else {
        format!(
            "at most {}, for leases lag by {} in this store; it takes a ttl of {}",
            duration::limit(longest),
            duration::exact(lag),
            duration::exact(shortest_ttl(grace, lag)),
        )
    };
    let (grace, ttl) = (duration::exact(grace), duration::exact(ttl));
    Err(Failure::usage(format!("a grace of {grace} is too long for a ttl of {ttl}: {limit}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn the_grace_is_a_fifth_of_the_ttl_and_at_most_a_third() {
        let none = Duration::ZERO;
        assert_eq!(grace(None, 10 * S, none).unwrap(), 2 * S);
        assert_eq!(grace(None, 3600 * S, none).unwrap(), 5 * S);
        assert_eq!(grace(Some(3 * S), 9 * S, none).unwrap(), 3 * S);
        let message = grace(Some(4 * S), 9 * S, none).unwrap_err().to_string();
        assert!(message.contains("of 4s") && message.ends_with("it, 3s"), "{message}");
    }

    #[test]
    fn a_grace_leaves_room_for_what_leases_lag_by() {
        let lag = 2 * S;
        assert_eq!(grace(None, 4 * S, lag).unwrap(), Duration::from_millis(400), "less than a fifth");
        assert_eq!(grace(None, 5 * S, lag).unwrap(), S);
        assert_eq!(grace(None, 10 * S, lag).unwrap(), 2 * S);
        assert_eq!(grace(Some(3 * S), 10 * S, lag).unwrap(), 3 * S);
        let message = grace(Some(2 * S), 6 * S, lag).unwrap_err().to_string();
        assert!(message.contains("at most 1s 600ms") && message.ends_with("a ttl of 6s 667ms"), "{message}");
        for grace_ms in (100..4000).step_by(37) {
            let asked = Duration::from_millis(grace_ms);
            let ttl = shortest_ttl(asked, lag);
            assert_eq!(grace(Some(asked), ttl, lag).unwrap(), asked, "the ttl that is named does");
            assert!(grace(Some(asked), ttl - 2 * Duration::from_millis(1), lag).is_err(), "a shorter one does not");
        }
    }
}
