//! Callers of one client that want the same value: one of them gets it for all.
//!
//! Whoever finds nobody at work leads. If it is dropped before the end, whoever of the others is polled first leads.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::error::CachedError;
use super::value::Value;
use crate::name::Name;

/// What became of a flight.
pub(super) type Landed<E> = Result<Value, CachedError<E>>;

/// The flights of one client. Callers whose computations fail with other types of errors are in flights of their own,
/// since they cannot be told each other's. So are callers with another `keep`: a value may be fresh for one and too old
/// for another.
#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<HashMap<Key, Entry>>);

type Key = (Name, Duration, TypeId);

#[derive(Debug)]
struct Entry {
    /// A `Flight<E>`, of the type in the key.
    flight: Arc<dyn Any + Send + Sync>,
    callers: usize,
}

struct Flight<E> {
    state: Mutex<State<E>>,
    changed: Notify,
}

enum State<E> {
    /// Nobody leads.
    Vacant,
    Led,
    Landed(Landed<E>),
}

/// What a caller is to do.
pub(super) enum Part<'a, E: Send + Sync + 'static> {
    /// Get the value, and tell the others.
    Lead(Seat<'a, E>),
    /// Nothing: another caller has got it.
    Told(Landed<E>),
}

/// A caller's seat in a flight.
pub(super) struct Seat<'a, E: Send + Sync + 'static> {
    flights: &'a Flights,
    key: Key,
    flight: Arc<Flight<E>>,
    leads: bool,
}

impl Flights {
    /// Waits until the caller leads the flight of this name, or is told how it ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the others go on.
    pub(super) async fn join<E: Send + Sync + 'static>(&self, name: &Name, keep: Duration) -> Part<'_, E> {
        let mut seat = self.board(name, keep);
        let flight = seat.flight.clone();
        loop {
            let mut changed = pin!(flight.changed.notified());
            changed.as_mut().enable();
            {
                let mut state = flight.state();
                match &*state {
                    State::Landed(landed) => return Part::Told(landed.clone()),
                    State::Led => {}
                    State::Vacant => {
                        *state = State::Led;
                        drop(state);
                        seat.leads = true;
                        return Part::Lead(seat);
                    }
                }
            }
            changed.await;
        }
    }

    fn board<E: Send + Sync + 'static>(&self, name: &Name, keep: Duration) -> Seat<'_, E> {
        let key = (name.clone(), keep, TypeId::of::<E>());
        let mut flights = self.flights();
        let known = flights.get_mut(&key).and_then(|entry| {
            let flight = entry.flight.clone().downcast().ok()?;
            entry.callers += 1;
            Some(flight)
        });
        let flight = known.unwrap_or_else(|| {
            let flight = Arc::new(Flight::<E> { state: Mutex::new(State::Vacant), changed: Notify::new() });
            flights.insert(key.clone(), Entry { flight: flight.clone(), callers: 1 });
            flight
        });
        Seat { flights: self, key, flight, leads: false }
    }

    fn flights(&self) -> MutexGuard<'_, HashMap<Key, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.flights().len()
    }
}

impl<E> Flight<E> {
    fn state(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Send + Sync + 'static> Seat<'_, E> {
    /// Tells all who wait. Whoever comes from now on is in another flight.
    pub(super) fn land(mut self, landed: Landed<E>) {
        self.leads = false;
        *self.flight.state() = State::Landed(landed);
        let mut flights = self.flights.flights();
        if self.is_of(flights.get(&self.key)) {
            flights.remove(&self.key);
        }
        drop(flights);
        self.flight.changed.notify_waiters();
    }

    /// Whether this is the entry of its flight: another one may have begun since.
    fn is_of(&self, entry: Option<&Entry>) -> bool {
        entry.is_some_and(|entry| std::ptr::addr_eq(Arc::as_ptr(&entry.flight), Arc::as_ptr(&self.flight)))
    }
}

impl<E: Send + Sync + 'static> Drop for Seat<'_, E> {
    fn drop(&mut self) {
        if self.leads {
            *self.flight.state() = State::Vacant;
            self.flight.changed.notify_waiters();
        }
        let mut flights = self.flights.flights();
        let Some(entry) = flights.get_mut(&self.key) else { return };
        if self.is_of(Some(entry)) {
            entry.callers -= 1;
            if entry.callers == 0 {
                flights.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
#[path = "flight_tests.rs"]
mod tests;
