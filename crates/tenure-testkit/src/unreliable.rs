//! A store behind a bad network: requests are lost, replies are lost, events are lost or come twice.

use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tenure::backend::{
    Answer, Backend, Block, BreakRequest, Call, Capabilities, ClaimRequest, Claimed, Confirmed, Guarantees, Listener,
    Memo, MemoWrite, MemoWritten, ReleaseRequest, Released, RenewRequest, Renewed, Replicas, WaitedFor, WaiterBreak,
};
use tenure::machine::NameView;
use tenure::{Certainty, Checkup, ClaimId, Error, ErrorKind, Name, Owner, Token};
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// How often things go wrong, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// A request does not reach the store.
    pub not_applied: u8,
    /// The caller is told of a failure.
    pub failed: u8,
    /// The caller is told nothing, ever.
    pub silent: u8,
    /// An event does not arrive.
    pub event_lost: u8,
    /// An event arrives twice.
    pub event_twice: u8,
}

impl Default for Faults {
    fn default() -> Self {
        Self { not_applied: 15, failed: 20, silent: 15, event_lost: 30, event_twice: 20 }
    }
}

/// Any backend, with faults drawn from a seed.
///
/// Two independent draws decide each call: whether the store gets it, and whether its caller is answered,
/// told of a failure, or left in silence. So "done, but reported as failed" is as common as it is nasty. A
/// call that reaches the store is made whole before its caller is failed or left in silence: its effect is
/// never later than a retry of it (a late copy is another fault, and the state machine's tests have it).
pub struct Unreliable {
    inner: Arc<dyn Backend>,
    faults: Faults,
    draws: Arc<Mutex<StdRng>>,
    silence: Arc<Notify>,
    /// Whoever calls may have none.
    runtime: Handle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Given,
    Failed(Certainty),
    Silent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fate {
    applied: bool,
    reply: Reply,
}

impl Unreliable {
    /// Wraps a backend; the same seed draws the same faults. Calls are carried by the runtime this is called on.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub fn new(inner: Arc<dyn Backend>, faults: Faults, seed: u64) -> Self {
        let draws = Arc::new(Mutex::new(StdRng::seed_from_u64(seed)));
        Self { inner, faults, draws, silence: Arc::new(Notify::new()), runtime: Handle::current() }
    }

    /// Notified each time a call has fallen silent, so that a test need not sit the silence out. It
    /// takes one call at a time: of two in flight either may be taken for the silent one.
    pub fn silence(&self) -> Arc<Notify> {
        self.silence.clone()
    }

    fn fate(&self) -> Fate {
        let mut draws = self.draws.lock().unwrap_or_else(PoisonError::into_inner);
        let applied = draws.random_range(0..100) >= self.faults.not_applied;
        let reply = draws.random_range(0..100);
        let honest = draws.random_bool(0.5);
        let reply = if reply < self.faults.silent {
            Reply::Silent
        } else if reply < self.faults.silent + self.faults.failed || !applied {
            // A request that was not applied has no answer to give; that it was not is known at times.
            Reply::Failed(if applied || !honest { Certainty::Unknown } else { Certainty::NotApplied })
        } else {
            Reply::Given
        };
        Fate { applied, reply }
    }

    fn call<T: Send + 'static>(&self, begin: impl FnOnce(&dyn Backend) -> Call<T> + Send + 'static) -> Call<T> {
        let fate = self.fate();
        let inner = self.inner.clone();
        let (silence, runtime) = (self.silence.clone(), self.runtime.clone());
        Box::pin(async move {
            let mut reply = None;
            if fate.applied {
                // On its own task, so that a caller that gives up does not stop it half-way.
                reply =
                    Some(runtime.spawn(async move { begin(&*inner).await }).await.expect("the inner call panicked"));
            }
            match (fate.reply, reply) {
                (Reply::Given, Some(reply)) => reply,
                (Reply::Silent, _) => {
                    silence.notify_one();
                    pending().await
                }
                (Reply::Failed(certainty), _) => Err(failure(certainty)),
                (Reply::Given, None) => Err(failure(Certainty::Unknown)),
            }
        })
    }
}

fn failure(certainty: Certainty) -> Error {
    Error::new(ErrorKind::Unavailable, "the connection broke (a fault of the test)").with_certainty(certainty)
}

impl fmt::Debug for Unreliable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unreliable").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)]
impl Backend for Unreliable {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn guarantees(&self) -> Guarantees {
        self.inner.guarantees()
    }

    fn url(&self) -> &str {
        self.inner.url()
    }

    fn listen(&self, listener: Listener) {
        let (draws, faults) = (self.draws.clone(), self.faults);
        self.inner.listen(Arc::new(move |event| {
            let draw: u8 = draws.lock().unwrap_or_else(PoisonError::into_inner).random_range(0..100);
            if draw < faults.event_lost {
                return;
            }
            if draw < faults.event_lost + faults.event_twice {
                listener(event.clone());
            }
            listener(event);
        }));
    }

    fn claim(&self, name: &Name, request: ClaimRequest) -> Call<Answer<Claimed>> {
        let name = name.clone();
        self.call(move |inner| inner.claim(&name, request))
    }

    fn renew(&self, batch: Vec<RenewRequest>, fresh: bool) -> Call<Answer<Vec<Renewed>>> {
        self.call(move |inner| inner.renew(batch, fresh))
    }

    fn release(&self, name: &Name, request: ReleaseRequest) -> Call<Released> {
        let name = name.clone();
        self.call(move |inner| inner.release(&name, request))
    }

    fn shown(&self, owner: &Owner, name: &Name, id: ClaimId) -> (Owner, ClaimId) {
        self.inner.shown(owner, name, id)
    }

    fn decline(&self, name: &Name, id: ClaimId) -> Call<()> {
        let name = name.clone();
        self.call(move |inner| inner.decline(&name, id))
    }

    fn next_block(&self, name: &Name, id: ClaimId, block_end: Token, next: ClaimRequest) -> Call<Answer<Block>> {
        let name = name.clone();
        self.call(move |inner| inner.next_block(&name, id, block_end, next))
    }

    fn break_holders(&self, name: &Name, request: BreakRequest) -> Call<usize> {
        let name = name.clone();
        self.call(move |inner| inner.break_holders(&name, request))
    }

    fn break_waiter(&self, name: &Name, request: WaiterBreak) -> Call<bool> {
        let name = name.clone();
        self.call(move |inner| inner.break_waiter(&name, request))
    }

    fn waited_for(&self, after: Option<Name>, limit: usize) -> Call<WaitedFor> {
        self.call(move |inner| inner.waited_for(after, limit))
    }

    fn inspect(&self, name: &Name) -> Call<NameView> {
        let name = name.clone();
        self.call(move |inner| inner.inspect(&name))
    }

    fn scan(&self, prefix: &str, after: Option<Name>, limit: usize) -> Call<Vec<NameView>> {
        let prefix = prefix.to_owned();
        self.call(move |inner| inner.scan(&prefix, after, limit))
    }

    fn write_memo(&self, name: &Name, write: MemoWrite) -> Call<MemoWritten> {
        let name = name.clone();
        self.call(move |inner| inner.write_memo(&name, write))
    }

    fn memo(&self, name: &Name) -> Call<Option<Memo>> {
        let name = name.clone();
        self.call(move |inner| inner.memo(&name))
    }

    fn time(&self) -> Call<SystemTime> {
        self.call(|inner| inner.time())
    }

    fn confirm(&self, claim: RenewRequest, replicas: Replicas) -> Call<Confirmed> {
        self.call(move |inner| inner.confirm(claim.clone(), replicas))
    }

    fn confirm_memo(&self, name: &Name, write: MemoWrite, replicas: Replicas) -> Call<Confirmed> {
        let name = name.clone();
        self.call(move |inner| inner.confirm_memo(&name, write, replicas))
    }

    fn close(&self) -> Call<()> {
        self.call(|inner| inner.close())
    }

    fn examine(&self) -> Call<Checkup> {
        self.call(|inner| inner.examine())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use tenure::backends::memory::MemoryStore;

    use super::*;

    fn fates(seed: u64) -> Vec<Fate> {
        let wrapped = Unreliable::new(Arc::new(MemoryStore::new().client()), Faults::default(), seed);
        (0..500).map(|_| wrapped.fate()).collect()
    }

    #[tokio::test]
    async fn the_same_seed_draws_the_same_faults() {
        assert_eq!(fates(7), fates(7));
        assert_ne!(fates(7), fates(8));
    }

    #[tokio::test]
    async fn every_kind_of_fault_is_drawn() {
        let kinds: HashSet<String> = fates(1).iter().map(|fate| format!("{fate:?}")).collect();
        // Applied: answered, failed, silent. Not applied: failed honestly, failed in doubt, silent.
        assert_eq!(kinds.len(), 6, "{kinds:?}");
    }

    #[tokio::test]
    async fn an_unanswered_call_is_applied_all_the_same() -> tenure::Result<()> {
        let store = MemoryStore::new();
        let silent = Faults { not_applied: 0, failed: 0, silent: 100, ..Faults::default() };
        let wrapped = Unreliable::new(Arc::new(store.client()), silent, 1);
        let silence = wrapped.silence();
        let name = Name::new("x")?;
        tokio::select! {
            _ = wrapped.claim(&name, crate::fixture::plain_request()) => panic!("answered"),
            () = silence.notified() => {}
        }
        assert_eq!(store.client().inspect(&name).await?.holders.len(), 1);
        Ok(())
    }
}
