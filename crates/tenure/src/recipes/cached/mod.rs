//! A value that is computed once, however many ask for it.

mod error;
mod fetch;
mod flight;
mod kept;
mod value;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::debug;

use crate::clock::Moment;
use crate::engine::Tenure;
use crate::error::{Error, ErrorKind, Step};
use crate::name::Name;

pub use error::CachedError;

use fetch::Fetched;
use flight::{Flights, Part};
use kept::Kept;
use value::{Value, Wanted};

/// What a client has at hand, and which callers get more.
#[derive(Debug, Default)]
pub(crate) struct LocalCache {
    kept: Mutex<Kept>,
    flights: Flights,
}

impl LocalCache {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, name: &Name, wanted: &Wanted, now: Moment) -> Option<Value> {
        self.kept().find(name, wanted, now)
    }
}

impl Tenure {
    /// The value of a name: the one at hand, the one in the store, or else what `compute` makes, once for a whole
    /// fleet. A value is taken for as long as it is younger than `keep`, or if it was made while the caller waited.
    ///
    /// Of the callers of one client one asks the store and the others wait for it. Of several clients one holds the
    /// lock of the name and computes; the others wait, and find the value in the name's [memo](Self::memo) all at once.
    /// If a computation fails, all who wait for it at this client are told, and other clients compute once each. If it
    /// dies with its process or task, or panics, the next computes. It is not stopped if the lease is lost: its value
    /// is returned then, and others compute their own.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let minute = Duration::from_secs(60);
    /// let price = || async { Ok::<_, std::io::Error>("1299") }; // a query that takes long, say
    /// let (a, b) = tokio::join!(tenure.cached("price/42", minute, price), tenure.cached("price/42", minute, price));
    /// assert_eq!((&*a?, &*b?), (&b"1299"[..], &b"1299"[..])); // it was computed once
    /// # Ok(()) }
    /// ```
    ///
    /// Use one name for one value and one `keep`, and no name that something else keeps a memo with. `compute` must not
    /// ask for the same name. At hand are at most 4,096 values and 16 MiB for each client.
    ///
    /// Values of more than 64 KiB (etcd: 4 KiB) do not go from client to client: only callers of the same client share
    /// them, and clients that waited compute again, one after the other.
    ///
    /// # Errors
    ///
    /// [`CachedError::Compute`] if the computation failed. [`CachedError::Store`] with the kind
    /// [`ErrorKind::Unavailable`] if the store is out of reach: values at hand are still returned then, and nothing is
    /// computed, since all clients would. [`ErrorKind::Invalid`] for a bad name, a `keep` of zero, and
    /// where the store keeps no memos ([`Capabilities::memos`](crate::backend::Capabilities)). [`ErrorKind::Conflict`]
    /// if a memo of another kind is kept with the name. Otherwise as [`Lock::acquire`](crate::Lock::acquire).
    ///
    /// # Cancel safety
    ///
    /// Cancelling drops `compute` where it stands, and loses the place in the queue; another caller of this client that
    /// waits goes on in its place. Claims are ended in the background, or by their ttl.
    pub async fn cached<C, W, V, E>(
        &self,
        name: impl AsRef<str>,
        keep: Duration,
        compute: C,
    ) -> Result<Arc<[u8]>, CachedError<E>>
    where
        C: FnOnce() -> W,
        W: Future<Output = Result<V, E>>,
        V: Into<Vec<u8>>,
        E: Send + Sync + 'static,
    {
        let short = name.as_ref();
        let name = self.full_name(short)?;
        if keep.is_zero() {
            let problem = "keep: a value that is kept for no time cannot be shared; call the computation itself";
            return Err(Error::new(ErrorKind::Invalid, problem).at(Step::Memo).about(&name).into());
        }
        self.check_store_shares(&name)?;
        let (clock, local) = (self.clock(), self.local_cache());
        let wanted = Wanted { keep, since: clock.now() };
        if let Some(value) = local.find(&name, &wanted, wanted.since) {
            return Ok(value.bytes);
        }
        let mut part = local.flights.join::<E>(&name, keep).await;
        if let Part::Told(Ok(value)) = &part
            && !wanted.takes(value, clock.now())
        {
            // That flight began before this call, and its value is too old by now. The next one gets another.
            part = local.flights.join::<E>(&name, keep).await;
        }
        let seat = match part {
            Part::Lead(seat) => seat,
            Part::Told(landed) => return landed.map(|value| value.bytes),
        };
        // Another flight may have ended just before this one began.
        let Fetched { outcome, held } = match local.find(&name, &wanted, clock.now()) {
            Some(value) => Fetched { outcome: Ok(value), held: None },
            None => self.fetch((short, &name), &wanted, compute).await,
        };
        if let Ok(value) = &outcome {
            local.kept().put(&name, value);
        }
        seat.land(outcome.clone());
        // Last of all, since those who wait here have no need of it.
        if let Some(held) = held
            && let Err(error) = held.release().await
        {
            debug!(%error, "the name of a value was not released");
        }
        outcome.map(|value| value.bytes)
    }
}
