//! Stores that break one promise each, made from one that keeps them all.

use std::sync::Arc;

use tenure::backend::{
    Answer, Backend, Block, Call, Capabilities, ClaimRequest, Claimed, Confirmed, Event, Guarantees, Listener,
    Released, RenewRequest, Renewed, Replicas, Standing,
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
    /// Answers that a claim it does not have lives.
    PutsBackOnRenewal,
    /// Tells the ttl that was asked for.
    ShortensTtl,
    /// Reserves one token, whatever was asked.
    BlocksOfOne,
    /// Answers that a broken claim is just gone.
    ForgetsWhoBroke,
    /// Takes `%` and `_` of a prefix, or case, for what they are in SQL.
    ScansCarelessly,
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

    fn release(&self, name: &Name, id: ClaimId, number: Option<u64>) -> Call<Released> {
        if self.has(Defect::SaysReleasedOnly) {
            return Box::pin(async { Ok(Released::Yes) });
        }
        self.inner.release(name, id, number.filter(|_| !self.has(Defect::ReleasesAnyNumber)))
    }

    fn decline(&self, name: &Name, id: ClaimId) -> Call<()> {
        self.inner.decline(name, id)
    }

    fn next_block(&self, name: &Name, id: ClaimId, block_end: Token, next: ClaimRequest) -> Call<Answer<Block>> {
        self.inner.next_block(name, id, block_end, next)
    }

    fn break_holders(&self, name: &Name, owner: Option<Owner>, by: Arc<str>, reason: Arc<str>) -> Call<usize> {
        self.inner.break_holders(name, owner, by, reason)
    }

    fn inspect(&self, name: &Name) -> Call<NameView> {
        self.inner.inspect(name)
    }

    fn confirm(&self, claim: RenewRequest, replicas: Replicas) -> Call<Confirmed> {
        self.inner.confirm(claim, replicas)
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
