//! A client as the cases use it: it asks again when it was not answered, and keeps what it heard.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tenure::backend::{
    Backend, Block, BreakRequest, Call, Capabilities, ClaimRequest, Claimed, Event, Memo, MemoWrite, MemoWritten,
    Place, Refusal, ReleaseRequest, Released, RenewRequest, Renewed, Standing, WaitedFor, WaiterBreak,
};
use tenure::machine::{Grant, NameView};
use tenure::{Certainty, ClaimId, Name, Owner, Token};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::elsewhere;

/// How often the same request is sent before the test fails: at one fault in two calls, never by chance.
pub(crate) const TRIES_MAX: usize = 64;
/// How long a store that is well may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long what is told may be on its way, on a busy machine: nobody tells it again.
const HEARD_WITHIN: Duration = Duration::from_secs(30);
/// How often a grant is asked for that no event told of: some seconds, for stores that look for the dead only now and
/// then.
const ASKS_MAX: usize = 1_000;
const BETWEEN_ASKS: Duration = Duration::from_millis(5);

/// One client of the store under test.
///
/// Every call is repeated, as it was, until it is answered: the same claim id, the same request. What a case
/// asserts must therefore hold whether an unanswered try was applied or not.
pub struct Client {
    backend: Arc<dyn Backend>,
    heard: Arc<Heard>,
    silence: Option<Arc<Notify>>,
    /// Whether calls are made by threads without a runtime.
    elsewhere: bool,
}

#[derive(Default)]
struct Heard {
    events: Mutex<Vec<Event>>,
    more: Notify,
}

/// An answer, and whether an earlier try of the same request may have been applied.
struct Told<T> {
    value: T,
    in_doubt: bool,
}

impl Client {
    /// Listens to the backend. `silence` tells that a call will never be answered
    /// ([`Unreliable::silence`](crate::Unreliable::silence)).
    pub(crate) fn new(backend: Arc<dyn Backend>, silence: Option<Arc<Notify>>) -> Self {
        let heard = Arc::new(Heard::default());
        let hearing = heard.clone();
        backend.listen(Arc::new(move |event| {
            hearing.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
            hearing.more.notify_waiters();
        }));
        Self { backend, heard, silence, elsewhere: false }
    }

    /// The same client, whose calls are made and waited for by threads without a runtime.
    #[must_use]
    pub fn elsewhere(self) -> Self {
        Self { elsewhere: true, ..self }
    }

    /// What the store can do.
    pub fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    /// The store's URL.
    pub fn url(&self) -> &str {
        self.backend.url()
    }

    /// The events so far.
    pub fn events(&self) -> Vec<Event> {
        self.heard.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends a claim until it is answered.
    pub async fn claim(&self, name: &Name, request: &ClaimRequest) -> Claimed {
        self.ask("claim", || self.backend.claim(name, request.clone())).await.value.value
    }

    /// Claims, and expects to hold at once.
    pub async fn holds(&self, name: &Name, request: &ClaimRequest) -> Grant {
        self.stands(name, request).await.state.unwrap_or_else(|place| panic!("{request:?} waits: {place:?}"))
    }

    /// Claims, and expects to wait.
    pub async fn waits(&self, name: &Name, request: &ClaimRequest) -> Place {
        let standing = self.stands(name, request).await;
        standing.state.expect_err("the claim was to wait, and was granted")
    }

    /// Claims, and expects to stand in the queue.
    pub async fn stands(&self, name: &Name, request: &ClaimRequest) -> Standing {
        match self.claim(name, request).await {
            Claimed::Stands(standing) => standing,
            other => panic!("{request:?} of {name} was to stand: {other:?}"),
        }
    }

    /// Claims without waiting, and expects the name to be held.
    pub async fn is_busy(&self, name: &Name, request: &ClaimRequest) -> Place {
        match self.claim(name, &ClaimRequest { queue: false, ..request.clone() }).await {
            Claimed::Busy(place) => place,
            other => panic!("{name} was to be busy for {request:?}: {other:?}"),
        }
    }

    /// Claims, and expects a refusal.
    pub async fn is_refused(&self, name: &Name, request: &ClaimRequest) -> Refusal {
        match self.claim(name, request).await {
            Claimed::Refused(refusal) => refusal,
            other => panic!("{request:?} of {name} was to be refused: {other:?}"),
        }
    }

    /// Renews a claim with its own ttl.
    pub async fn renew(&self, name: &Name, request: &ClaimRequest) -> Renewed {
        let mut answers = self.renew_all(vec![RenewRequest::of(name, request)]).await;
        assert_eq!(answers.len(), 1, "one answer for each claim");
        answers.remove(0)
    }

    /// Renews, and expects the claim to stand.
    pub async fn renews(&self, name: &Name, request: &ClaimRequest) -> Standing {
        match self.renew(name, request).await {
            Renewed::Stands(standing) => standing,
            other => panic!("{request:?} of {name} was to live: {other:?}"),
        }
    }

    /// Renews several claims at once, until the store knows what became of each.
    pub async fn renew_all(&self, batch: Vec<RenewRequest>) -> Vec<Renewed> {
        let known = |answers: &[Renewed]| !answers.iter().any(|answer| matches!(answer, Renewed::Unknown(_)));
        let mut unknown = Vec::new();
        for _ in 0..TRIES_MAX {
            let answers = self.ask("renew", || self.backend.renew(batch.clone(), false)).await.value.value;
            if known(&answers) {
                return answers;
            }
            unknown = answers;
            // Only a pause between two questions: a store that was cut off has to find back first.
            let _ = timeout(BETWEEN_ASKS, std::future::pending::<()>()).await;
        }
        panic!("what became of {batch:?} was not known in {TRIES_MAX} tries: {unknown:?}");
    }

    /// Ends a claim, and expects that this ended it (or a try whose answer was lost).
    pub async fn releases(&self, name: &Name, request: &ClaimRequest) {
        let told = self.ends(name, ReleaseRequest::of(request)).await;
        assert_eq!(told, Released::Yes, "{request:?} of {name} was to be ended by its release");
    }

    /// Ends a claim only if it still waits; `NotFound` after a try in doubt is taken for its success.
    pub async fn ends_if_it_waits(&self, name: &Name, request: &ClaimRequest) -> Released {
        self.ends(name, ReleaseRequest { waiting_only: true, ..ReleaseRequest::of(request) }).await
    }

    async fn ends(&self, name: &Name, request: ReleaseRequest) -> Released {
        let told = self.ask("release", || self.backend.release(name, request.clone())).await;
        if told.in_doubt && told.value == Released::NotFound { Released::Yes } else { told.value }
    }

    /// Ends a claim; the last answer as it came. After a try in doubt that is the answer to a repetition.
    pub async fn release(&self, name: &Name, claim: &ClaimRequest, number: Option<u64>) -> Released {
        self.release_as_asked(name, ReleaseRequest { number, ..ReleaseRequest::of(claim) }).await
    }

    /// The same, as it is asked for.
    pub async fn release_as_asked(&self, name: &Name, request: ReleaseRequest) -> Released {
        self.ask("release", || self.backend.release(name, request.clone())).await.value
    }

    /// Asks for the next block.
    pub async fn next_block(&self, name: &Name, id: ClaimId, block_end: Token, next: &ClaimRequest) -> Block {
        self.ask("next_block", || self.backend.next_block(name, id, block_end, next.clone())).await.value.value
    }

    /// What views show of a claim: its owner and its id.
    pub fn shown(&self, name: &Name, claim: &ClaimRequest) -> (Owner, ClaimId) {
        self.backend.shown(&claim.owner, name, claim.id)
    }

    /// What views show of an owner.
    pub fn shown_owner(&self, name: &Name, owner: &Owner) -> Owner {
        self.backend.shown(owner, name, ClaimId(0)).0
    }

    /// Breaks the holders, or one of them, and expects that one claim of each that is `meant` ended.
    pub async fn breaks(&self, name: &Name, only: Option<&Owner>, why: (&str, &str), meant: &[&Owner]) {
        let owner = only.map(|owner| self.shown_owner(name, owner));
        self.breaks_as_asked(name, BreakRequest { owner, ..BreakRequest::all(why.0, why.1) }, meant).await;
    }

    /// Breaks the holders, as it is asked for, and expects that one claim of each that is `meant` ended.
    ///
    /// A break is not repeated blindly, since it would end the next holder too: after a try in doubt one
    /// looks whether the owners it was meant for still hold, as its documentation says.
    pub async fn breaks_as_asked(&self, name: &Name, request: BreakRequest, meant: &[&Owner]) {
        let meant: Vec<Owner> = meant.iter().map(|owner| self.shown_owner(name, owner)).collect();
        for _ in 0..TRIES_MAX {
            match self.try_once(self.backend.break_holders(name, request.clone())).await {
                Ok(ended) => {
                    assert_eq!(ended, meant.len(), "claims of {name} ended by {request:?}");
                    return;
                }
                Err(Certainty::NotApplied) => {}
                Err(Certainty::Unknown) => {
                    let holders = self.inspect(name).await.holders;
                    if !holders.iter().any(|held| held.owner.as_ref().is_some_and(|owner| meant.contains(owner))) {
                        return;
                    }
                }
            }
        }
        panic!("a break of {name} was not answered in {TRIES_MAX} tries");
    }

    /// Ends a claim of somebody else if it waits and has this number; whether it did, or a try whose answer was lost.
    pub async fn breaks_waiter(&self, name: &Name, claim: (ClaimId, u64), why: (&str, &str)) -> bool {
        let request = WaiterBreak { id: claim.0, number: claim.1, by: why.0.into(), reason: why.1.into() };
        let told = self.ask("break_waiter", || self.backend.break_waiter(name, request.clone())).await;
        told.value || told.in_doubt
    }

    /// The names below `root` that somebody waits for, at most `limit` looked at with each request. Begun there and not
    /// at the first name of all: others use the store, too, and a look at everything may outlast the claims.
    pub async fn waited_for(&self, root: &Name, limit: usize) -> Vec<NameView> {
        let is_below = |name: &Name| name.as_str().starts_with(root.as_str());
        let (mut views, mut after) = (Vec::new(), Some(root.clone()));
        loop {
            let page: WaitedFor = self.ask("waited_for", || self.backend.waited_for(after.clone(), limit)).await.value;
            views.extend(page.views.into_iter().filter(|view| is_below(&view.name)));
            after = page.after.filter(is_below);
            if after.is_none() {
                return views;
            }
        }
    }

    /// Breaks a name that nobody holds; how many claims ended.
    pub async fn breaks_nobody(&self, name: &Name) -> usize {
        self.ask("break", || self.backend.break_holders(name, BreakRequest::all("operator", ""))).await.value
    }

    /// Writes a memo.
    pub async fn write_memo(&self, name: &Name, write: &MemoWrite) -> MemoWritten {
        self.ask("write_memo", || self.backend.write_memo(name, write.clone())).await.value
    }

    /// Reads a memo.
    pub async fn memo(&self, name: &Name) -> Option<Memo> {
        self.ask("memo", || self.backend.memo(name)).await.value
    }

    /// The store's time.
    pub async fn time(&self) -> SystemTime {
        self.ask("time", || self.backend.time()).await.value
    }

    /// Who holds and who waits.
    pub async fn inspect(&self, name: &Name) -> NameView {
        self.ask("inspect", || self.backend.inspect(name)).await.value
    }

    /// Names in use.
    pub async fn scan(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Vec<NameView> {
        self.ask("scan", || self.backend.scan(prefix, after.cloned(), limit)).await.value
    }

    /// Waits until a claim holds: until its event comes, or a renewal says so (an event may be lost).
    pub async fn wait_for_grant(&self, name: &Name, request: &ClaimRequest) -> Grant {
        for _ in 0..ASKS_MAX {
            if let Some(grant) = self.heard_grant(request.id) {
                return grant;
            }
            if let Ok(grant) = self.renews(name, request).await.state {
                return grant;
            }
            // Only a pause between two questions: what ends the wait is the answer.
            let _ = timeout(BETWEEN_ASKS, self.heard.more.notified()).await;
        }
        panic!("{request:?} of {name} was to be granted: {:?}", self.inspect(name).await);
    }

    /// Waits until so many are ahead of a waiting claim: somebody who has just left may still be counted, nobody is
    /// left out.
    pub async fn wait_for_place(&self, name: &Name, request: &ClaimRequest, ahead: usize) {
        for _ in 0..ASKS_MAX {
            let place = self.renews(name, request).await.state.expect_err("granted out of turn");
            assert!(place.ahead >= ahead, "{place:?}, and {ahead} are ahead");
            if place.ahead == ahead {
                return;
            }
            // As above.
            let _ = timeout(BETWEEN_ASKS, self.heard.more.notified()).await;
        }
        panic!("{ahead} are ahead of {request:?} of {name}: {:?}", self.inspect(name).await);
    }

    /// Waits for the event of a grant, without asking. Only where events are not lost.
    pub async fn hear_grant(&self, id: ClaimId) -> Grant {
        self.hear(&format!("the grant of {id}"), || self.heard_grant(id)).await
    }

    /// Waits for an event that `wanted` finds.
    pub async fn hear<T>(&self, what: &str, wanted: impl Fn() -> Option<T>) -> T {
        let heard = async {
            loop {
                // Registered before looking, so that nothing slips through between.
                let mut more = std::pin::pin!(self.heard.more.notified());
                more.as_mut().enable();
                if let Some(found) = wanted() {
                    return found;
                }
                more.await;
            }
        };
        timeout(HEARD_WITHIN, heard).await.unwrap_or_else(|_| panic!("did not hear {what}, only {:?}", self.events()))
    }

    /// The grant an event has told of.
    pub fn heard_grant(&self, wanted: ClaimId) -> Option<Grant> {
        self.events().into_iter().find_map(|event| match event {
            Event::Granted { id, grant, .. } if id == wanted => Some(grant),
            _ => None,
        })
    }

    async fn ask<T: Send + 'static>(&self, what: &str, begin: impl Fn() -> Call<T> + Sync) -> Told<T> {
        let mut in_doubt = false;
        for _ in 0..TRIES_MAX {
            let call = if self.elsewhere { Box::pin(elsewhere::finish(elsewhere::make(&begin))) } else { begin() };
            match self.try_once(call).await {
                Ok(value) => return Told { value, in_doubt },
                Err(certainty) => in_doubt |= certainty == Certainty::Unknown,
            }
        }
        panic!("{what} was not answered in {TRIES_MAX} tries");
    }

    /// One try; whether it may have been applied if it was not answered.
    async fn try_once<T>(&self, call: Call<T>) -> Result<T, Certainty> {
        tokio::select! {
            reply = timeout(PATIENCE, call) => match reply {
                Ok(Ok(value)) => Ok(value),
                Ok(Err(error)) if error.is_retryable() => Err(error.certainty()),
                Ok(Err(error)) => panic!("the store failed: {error}"),
                Err(_) => Err(Certainty::Unknown),
            },
            () = fell_silent(self.silence.as_deref()) => Err(Certainty::Unknown),
        }
    }
}

async fn fell_silent(silence: Option<&Notify>) {
    match silence {
        Some(silence) => silence.notified().await,
        None => std::future::pending().await,
    }
}
