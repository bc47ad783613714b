//! What a run's arguments come to, checked before anything is touched.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use tenure::backend::Capabilities;
use tenure::{Lock, Name, Replicas, Session};

use super::hold::Hold;
use crate::args::Run;
use crate::failure::Failure;
use crate::held::Held;
use crate::store::Store;
use crate::wait::Wait;
use crate::{duration, env, label};

/// The longest grace there is by default.
const GRACE_DEFAULT_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
enum Shape {
    Exclusive,
    Shared,
    Permits(u32),
}

/// A run, ready to go.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(super) name: Name,
    pub(super) store: Store,
    pub(super) ttl: Duration,
    pub(super) grace: Duration,
    pub(super) wait: Wait,
    pub(super) label: String,
    pub(super) command: Vec<OsString>,
    pub(super) held: Held,
    pub(super) json: bool,
    shape: Shape,
    replicas: Option<Replicas>,
}

impl Plan {
    pub(crate) fn new(args: Run, store: Store, json: bool) -> Result<Self, Failure> {
        let shape = match args.permits {
            Some(permits) => Shape::Permits(permits),
            None if args.shared => Shape::Shared,
            None => Shape::Exclusive,
        };
        store.warn_if_alone(json);
        let label = args.label.unwrap_or_else(|| args.command.first().map(|c| label::of_run(c)).unwrap_or_default());
        Ok(Self {
            name: Name::new(&args.name)?,
            store,
            ttl: args.ttl,
            grace: grace(args.grace, args.ttl)?,
            wait: Wait::of(args.waiting.wait, args.waiting.no_wait),
            label,
            command: args.command,
            held: Held::from_env()?,
            json,
            shape,
            replicas: args.replication.min_replicas,
        })
    }

    /// The lock to take, as a claim of this session.
    pub(super) fn lock(&self, session: &Session) -> Lock {
        let lock = match self.shape {
            Shape::Exclusive => session.lock(self.name.as_str()),
            Shape::Shared => session.rwlock(self.name.as_str()).read(),
            Shape::Permits(permits) => session.semaphore(self.name.as_str(), permits),
        };
        let lock = lock.ttl(self.ttl);
        match self.replicas {
            Some(replicas) => lock.min_replicas(replicas),
            None => lock,
        }
    }

    /// Whether it may share the claim of the run around it. One that asks for replicas may not: nobody would ask for
    /// them when that claim is renewed. What the store lacks is refused as it is outside a run.
    pub(super) fn can_share(&self, store: &Capabilities) -> Result<bool, Failure> {
        match (&self.shape, self.replicas) {
            (Shape::Exclusive, Some(_)) if store.replicas => Err(Failure::usage(format!(
                "{}: --min-replicas within a run that holds it already: this store shares that run's lock, so ask for \
                 replicas there",
                self.name
            ))),
            (Shape::Exclusive, None) => Ok(true),
            _ => Ok(false),
        }
    }

    /// What the command finds in its environment; `None` unsets.
    pub(super) fn environment(&self, hold: &Hold) -> Result<BTreeMap<String, Option<String>>, Failure> {
        let held = self.held.clone().and(self.store.shown(), hold);
        let held = serde_json::to_string(&held)
            .map_err(|error| Failure::usage(format!("${} cannot be written: {error}", env::HELD)))?;
        Ok([
            (env::NAME, Some(self.name.to_string())),
            (env::TOKEN, hold.token().map(|token| token.to_string())),
            (env::OWNER, Some(hold.owner().to_string())),
            (env::URL, Some(self.store.url().to_owned())),
            (env::HELD, Some(held)),
            (env::ON, None),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into())
    }
}

/// The time from SIGTERM to SIGKILL. It is taken from the end of the ttl, and renewals need the rest.
fn grace(asked: Option<Duration>, ttl: Duration) -> Result<Duration, Failure> {
    let Some(grace) = asked else { return Ok((ttl / 5).min(GRACE_DEFAULT_MAX)) };
    if grace > ttl / 3 {
        return Err(Failure::usage(format!(
            "a grace of {} is too long for a ttl of {}: at most a third of it, {}",
            duration::exact(grace),
            duration::exact(ttl),
            duration::limit(ttl / 3),
        )));
    }
    Ok(grace)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn the_grace_is_a_fifth_of_the_ttl_and_at_most_a_third() {
        assert_eq!(grace(None, 10 * S).unwrap(), 2 * S);
        assert_eq!(grace(None, 3600 * S).unwrap(), 5 * S);
        assert_eq!(grace(Some(3 * S), 9 * S).unwrap(), 3 * S);
        let message = grace(Some(4 * S), 9 * S).unwrap_err().to_string();
        assert!(message.contains("of 4s") && message.ends_with("it, 3s"), "{message}");
    }
}
