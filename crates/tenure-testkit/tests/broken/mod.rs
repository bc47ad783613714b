//! Stores that break one promise each, made from one that keeps them all.

use std::sync::Arc;
use std::time::SystemTime;

use tenure::backend::{
    Answer, Backend, Block, BreakRequest, Call, Capabilities, ClaimRequest, Claimed, Confirmed, Event, Guarantees,
    Listener, Memo, MemoWrite, MemoWritten, ReleaseRequest, Released, RenewRequest, Renewed, Replicas, Standing,
    WaitedFor, WaiterBreak,
};
use tenure::clock::Moment;
use tenure::machine::{Grant, NameView};
use tenure::{Checkup, ClaimId, Name, Owner, Token};

/// What is wrong with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    None,
    /// Answers a claim that finds the name held with a grant.
    GrantsWhatIsBusy,
    /// Never sends an event.
    TellsNobody,
    /// Answers releases, and does nothing.
    SaysReleasedOnly,
    /// Gives every holder the same token.
    ReusesTokens,
    /// Does not compare the number of the claim to release.
    ReleasesAnyNumber,
    /// Ends claims that hold, though they were to end only while they wait.
    ReleasesHolders,
    /// Does not compare tokens when it breaks.
    BreaksLaterHolders,
    /// Ends those who hold, though a claim was to end only while it waits.
    BreaksHoldersForWaiters,
    /// Leaves out a name that somebody waits for.
    LeavesOutWaitedFor,
    /// Does not keep what waiting claims run within.
    ForgetsWithin,
    /// Answers that a claim it does not have lives.
    PutsBackOnRenewal,
    /// Tells the ttl that was asked for.
    ShortensTtl,
    /// Does not compare the number of the claim to renew.
    RenewsAnyNumber,
    /// Reserves one token, whatever was asked.
    BlocksOfOne,
    /// Answers that a broken claim is just gone.
    ForgetsWhoBroke,
    /// Takes `%` and `_` of a prefix, or case, for what they are in SQL.
    ScansCarelessly,
    /// Writes a memo over whatever version there is.
    MemoOverAnyVersion,
    /// Does not know a memo's last write again.
    MemoTwice,
    /// Lets anybody write a memo in the holder's place.
    MemoByAnybody,
}

/// A backend with one [`Defect`].
#[derive(Debug)]
pub(crate) struct Broken {
    inner: Arc<dyn Backend>,
    defect: Defect,
}

impl Broken {
    pub(crate) fn new(inner: Arc<dyn Backend>, defect: Defect) -> Self {
        Self { inner, defect }
    }

    fn has(&self, defect: Defect) -> bool {
        self.defect == defect
    }
}

const STALE: Grant = Grant { token: Token(7), block_end: Token(7), at: Moment(0) };

#[deny(clippy::missing_trait_methods)]
impl Backend for Broken {
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
        let silent = self.has(Defect::TellsNobody);
        self.inner.listen(Arc::new(move |event: Event| {
            if !silent {
                listener(event);
            }
        }));
    }

    fn claim(&self, name: &Name, mut request: ClaimRequest) -> Call<Answer<Claimed>> {
        if self.has(Defect::BlocksOfOne) {
            request.block = 1;
        }
        let (defect, ttl) = (self.defect, request.ttl);
        let call = self.inner.claim(name, request);
        Box::pin(async move {
            let mut answer = call.await?;
            match (&mut answer.value, defect) {
                (busy @ Claimed::Busy(_), Defect::GrantsWhatIsBusy) => {
                    *busy = Claimed::Stands(Standing { number: 1, ttl, state: Ok(STALE) });
                }
                (Claimed::Stands(Standing { state: Ok(grant), .. }), Defect::ReusesTokens) => *grant = STALE,
                _ => {}
            }
            Ok(answer)
        })
    }

    fn renew(&self, batch: Vec<RenewRequest>, fresh: bool) -> Call<Answer<Vec<Renewed>>> {
        let (defect, asked) = (self.defect, batch.clone());
        let number = |number: Option<u64>| number.filter(|_| defect != Defect::RenewsAnyNumber);
        let batch = batch.into_iter().map(|claim| RenewRequest { number: number(claim.number), ..claim }).collect();
        let call = self.inner.renew(batch, fresh);
        Box::pin(async move {
            let mut answer = call.await?;
            for (renewed, RenewRequest { ttl, .. }) in answer.value.iter_mut().zip(asked) {
                match (&mut *renewed, defect) {
                    (Renewed::Gone, Defect::PutsBackOnRenewal) => {
                        *renewed = Renewed::Stands(Standing { number: 1, ttl, state: Ok(STALE) });
                    }
                    (Renewed::Broken { .. }, Defect::ForgetsWhoBroke) => *renewed = Renewed::Gone,
                    (Renewed::Stands(standing), Defect::ShortensTtl) => standing.ttl = ttl,
                    _ => {}
                }
            }
            Ok(answer)
        })
    }

    fn release(&self, name: &Name, mut request: ReleaseRequest) -> Call<Released> {
        if self.has(Defect::SaysReleasedOnly) {
            return Box::pin(async { Ok(Released::Yes) });
        }
        if self.has(Defect::ReleasesAnyNumber) {
            request.number = None;
        }
        request.waiting_only &= !self.has(Defect::ReleasesHolders);
        self.inner.release(name, request)
    }

    fn shown(&self, owner: &Owner, name: &Name, id: ClaimId) -> (Owner, ClaimId) {
        self.inner.shown(owner, name, id)
    }

    fn decline(&self, name: &Name, id: ClaimId) -> Call<()> {
        self.inner.decline(name, id)
    }

    fn next_block(&self, name: &Name, id: ClaimId, block_end: Token, next: ClaimRequest) -> Call<Answer<Block>> {
        self.inner.next_block(name, id, block_end, next)
    }

    fn break_holders(&self, name: &Name, mut request: BreakRequest) -> Call<usize> {
        request.up_to = request.up_to.filter(|_| !self.has(Defect::BreaksLaterHolders));
        self.inner.break_holders(name, request)
    }

    fn break_waiter(&self, name: &Name, request: WaiterBreak) -> Call<bool> {
        if !self.has(Defect::BreaksHoldersForWaiters) {
            return self.inner.break_waiter(name, request);
        }
        let (name, inner) = (name.clone(), self.inner.clone());
        Box::pin(async move {
            let waited = inner.break_waiter(&name, request.clone()).await?;
            let all = BreakRequest::all(request.by, request.reason);
            Ok(waited || inner.break_holders(&name, all).await? > 0)
        })
    }

    fn waited_for(&self, after: Option<Name>, limit: usize) -> Call<WaitedFor> {
        let (call, leaves_out) = (self.inner.waited_for(after, limit), self.has(Defect::LeavesOutWaitedFor));
        Box::pin(async move {
            let mut found = call.await?;
            if leaves_out {
                found.views.pop();
            }
            Ok(found)
        })
    }

    fn inspect(&self, name: &Name) -> Call<NameView> {
        let (call, forgets) = (self.inner.inspect(name), self.has(Defect::ForgetsWithin));
        Box::pin(async move {
            let mut view = call.await?;
            if forgets {
                view.waiters.iter_mut().for_each(|waiter| waiter.within.clear());
            }
            Ok(view)
        })
    }

    fn write_memo(&self, name: &Name, mut write: MemoWrite) -> Call<MemoWritten> {
        if self.has(Defect::MemoTwice) {
            write.write = rand::random();
        }
        let (inner, name, defect) = (self.inner.clone(), name.clone(), self.defect);
        Box::pin(async move {
            if defect == Defect::MemoOverAnyVersion {
                write.after = inner.memo(&name).await?.map_or(0, |memo| memo.version);
            }
            if defect == Defect::MemoByAnybody
                && let Some(holder) = inner.inspect(&name).await?.holders.first()
            {
                write.id = holder.claims.first().map_or(write.id, |(id, _)| *id);
                write.token = holder.token.unwrap_or(write.token);
            }
            inner.write_memo(&name, write).await
        })
    }

    fn memo(&self, name: &Name) -> Call<Option<Memo>> {
        self.inner.memo(name)
    }

    fn time(&self) -> Call<SystemTime> {
        self.inner.time()
    }

    fn confirm(&self, claim: RenewRequest, replicas: Replicas) -> Call<Confirmed> {
        self.inner.confirm(claim, replicas)
    }

    fn confirm_memo(&self, name: &Name, write: MemoWrite, replicas: Replicas) -> Call<Confirmed> {
        self.inner.confirm_memo(name, write, replicas)
    }

    fn close(&self) -> Call<()> {
        self.inner.close()
    }
    fn examine(&self) -> Call<Checkup> {
        self.inner.examine()
    }

    fn scan(&self, prefix: &str, after: Option<Name>, limit: usize) -> Call<Vec<NameView>> {
        if !self.has(Defect::ScansCarelessly) {
            return self.inner.scan(prefix, after, limit);
        }
        let (call, prefix) = (self.inner.scan("", after, usize::MAX), prefix.to_lowercase());
        Box::pin(async move {
            let mut views = call.await?;
            views.retain(|view| view.name.as_str().to_lowercase().starts_with(&prefix));
            views.truncate(limit);
            Ok(views)
        })
    }
}
