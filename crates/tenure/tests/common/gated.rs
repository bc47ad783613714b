//! A store whose replies come, fail, come late or never, as the test says.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use tenure::backend::{BreakRequest, ReleaseRequest, RenewRequest, WaitedFor, WaiterBreak, *};
use tenure::clock::Moment;
use tenure::machine::NameView;
use tenure::{Certainty, Checkup, ClaimId, Error, ErrorKind, Name, Owner, Token};
use tokio::sync::Notify;

/// What becomes of a request and its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Comes,
    /// Comes after the task has been polled once more.
    ComesLater,
    /// The request was applied, and failed all the same.
    FailsApplied,
    /// The request never arrived, and failed.
    FailsNotApplied,
    /// Comes when the gate is opened.
    Late,
    /// A claim or a memo arrives when the gate is opened; all else at once.
    Delayed,
    /// The request was applied; nothing comes, ever.
    NeverApplied,
    /// The request is lost; nothing comes, ever.
    Never,
}

#[derive(Debug)]
pub(crate) struct Gated {
    inner: Arc<dyn Backend>,
    reply: Mutex<Reply>,
    open: Arc<Notify>,
    deaf: Arc<AtomicBool>,
    queue: bool,
    memos: bool,
    outdated: AtomicBool,
    pub(crate) calls: AtomicUsize,
    looks: AtomicUsize,
    timeless: AtomicBool,
    renewing: Mutex<Renewing>,
    releasing: Mutex<Releasing>,
}

/// Sees each batch of renewals before it is sent, and says which of it the store fails.
#[derive(Default)]
struct Renewing(Option<Failing>);

/// Says of each claim in a batch whether the store fails it.
type Failing = Box<dyn Fn(&[RenewRequest]) -> Vec<bool> + Send>;

/// Sees each release before it is sent, and says whether the store fails it.
#[derive(Default)]
struct Releasing(Option<FailingRelease>);

type FailingRelease = Box<dyn Fn(&Name) -> bool + Send>;

impl std::fmt::Debug for Releasing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Releasing")
    }
}

impl std::fmt::Debug for Renewing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Renewing")
    }
}

impl Gated {
    pub(crate) fn new(inner: Arc<dyn Backend>) -> Self {
        Self {
            inner,
            reply: Mutex::new(Reply::Comes),
            open: Arc::default(),
            deaf: Arc::default(),
            queue: true,
            memos: true,
            outdated: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
            looks: AtomicUsize::new(0),
            timeless: AtomicBool::new(false),
            renewing: Mutex::default(),
            releasing: Mutex::default(),
        }
    }

    /// How often it was looked for names that somebody waits for.
    pub(crate) fn looks(&self) -> usize {
        self.looks.load(Ordering::Relaxed)
    }

    /// From now on this sees each batch of renewals before it is sent.
    pub(crate) fn watch_renewals(&self, seen: impl Fn(&[RenewRequest]) + Send + 'static) {
        self.fail_renewals(move |batch| {
            seen(batch);
            vec![false; batch.len()]
        });
    }

    /// From now on the store fails the claims of a batch for which this is true, and answers for the others.
    pub(crate) fn fail_renewals(&self, fails: impl Fn(&[RenewRequest]) -> Vec<bool> + Send + 'static) {
        *self.renewing.lock().unwrap() = Renewing(Some(Box::new(fails)));
    }

    /// From now on the store fails the releases of names for which this is true.
    pub(crate) fn fail_releases(&self, fails: impl Fn(&Name) -> bool + Send + 'static) {
        *self.releasing.lock().unwrap() = Releasing(Some(Box::new(fails)));
    }

    /// From now on.
    pub(crate) fn set(&self, reply: Reply) {
        *self.reply.lock().unwrap() = reply;
    }

    /// From now on no news of the store arrives.
    pub(crate) fn deafen(&self) {
        self.deaf.store(true, Ordering::Relaxed);
    }

    /// From now on claims count from the beginning of time, as in a store that cannot tell a later moment.
    pub(crate) fn outdate(&self) {
        self.outdated.store(true, Ordering::Relaxed);
    }

    /// From now on the store fails when it is asked for the time.
    pub(crate) fn fail_time(&self) {
        self.timeless.store(true, Ordering::Relaxed);
    }

    /// A store that keeps no queue.
    pub(crate) fn without_queue(mut self) -> Self {
        self.queue = false;
        self
    }

    /// A store that keeps no memos and tells no time.
    pub(crate) fn without_memos(mut self) -> Self {
        self.memos = false;
        self
    }

    /// Lets late replies come, and all others from now on.
    pub(crate) fn open(&self) {
        self.set(Reply::Comes);
        self.open.notify_waiters();
    }

    fn gate<T: Send + 'static>(&self, call: impl FnOnce() -> Call<T>) -> Call<T> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let failure = |certainty| Error::new(ErrorKind::Unavailable, "the gate is closed").with_certainty(certainty);
        let reply = *self.reply.lock().unwrap();
        match reply {
            Reply::Comes | Reply::Delayed => call(),
            Reply::ComesLater => {
                let call = call();
                Box::pin(async move {
                    tokio::task::yield_now().await;
                    call.await
                })
            }
            Reply::FailsApplied => {
                let call = call();
                Box::pin(async move {
                    drop(call.await);
                    Err(failure(Certainty::Unknown))
                })
            }
            Reply::FailsNotApplied => Box::pin(async move { Err(failure(Certainty::NotApplied)) }),
            Reply::Late => {
                let (call, open) = (call(), self.open.clone());
                Box::pin(async move {
                    open.notified().await;
                    call.await
                })
            }
            Reply::NeverApplied => {
                let call = call();
                Box::pin(async move {
                    drop(call.await);
                    std::future::pending().await
                })
            }
            Reply::Never => Box::pin(std::future::pending()),
        }
    }
}

#[deny(clippy::missing_trait_methods)]
impl Backend for Gated {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        capabilities.memos &= self.memos;
        capabilities.time &= self.memos;
        if self.queue { capabilities } else { capabilities.without_queue() }
    }
    fn guarantees(&self) -> Guarantees {
        self.inner.guarantees()
    }
    fn url(&self) -> &str {
        self.inner.url()
    }
    fn listen(&self, listener: Listener) {
        let deaf = self.deaf.clone();
        self.inner.listen(Arc::new(move |event| {
            if !deaf.load(Ordering::Relaxed) {
                listener(event);
            }
        }));
    }
    fn claim(&self, name: &Name, request: ClaimRequest) -> Call<Answer<Claimed>> {
        if *self.reply.lock().unwrap() == Reply::Delayed {
            let (inner, name, open) = (self.inner.clone(), name.clone(), self.open.clone());
            return Box::pin(async move {
                open.notified().await;
                inner.claim(&name, request).await
            });
        }
        let call = self.gate(|| self.inner.claim(name, request));
        if !self.outdated.load(Ordering::Relaxed) {
            return call;
        }
        Box::pin(async move { Ok(Answer { counted_from: Moment(0), ..call.await? }) })
    }
    fn renew(&self, batch: Vec<RenewRequest>, fresh: bool) -> Call<Answer<Vec<Renewed>>> {
        let fails = self.renewing.lock().unwrap().0.as_ref().map(|renewing| renewing(&batch));
        let Some(fails) = fails.filter(|fails| fails.contains(&true)) else {
            return self.gate(|| self.inner.renew(batch, fresh));
        };
        let kept = batch.into_iter().zip(&fails).filter(|(_, fails)| !**fails).map(|(claim, _)| claim);
        let call = self.gate(|| self.inner.renew(kept.collect(), fresh));
        Box::pin(async move {
            let Answer { value, counted_from } = call.await?;
            let mut answered = value.into_iter();
            let answer = |fails: bool| if fails { None } else { answered.next() };
            let answers = fails.into_iter().map(answer);
            let value = answers.map(|answer| answer.unwrap_or_else(|| Renewed::Unknown("its shard is down".into())));
            Ok(Answer { value: value.collect(), counted_from })
        })
    }
    fn release(&self, name: &Name, request: ReleaseRequest) -> Call<Released> {
        if self.releasing.lock().unwrap().0.as_ref().is_some_and(|fails| fails(name)) {
            let failure = Error::new(ErrorKind::Unavailable, "its shard is down").with_certainty(Certainty::Unknown);
            return Box::pin(async move { Err(failure) });
        }
        self.gate(|| self.inner.release(name, request))
    }
    fn shown(&self, owner: &Owner, name: &Name, id: ClaimId) -> (Owner, ClaimId) {
        self.inner.shown(owner, name, id)
    }
    fn decline(&self, name: &Name, id: ClaimId) -> Call<()> {
        self.gate(|| self.inner.decline(name, id))
    }
    fn next_block(&self, name: &Name, id: ClaimId, block_end: Token, next: ClaimRequest) -> Call<Answer<Block>> {
        self.gate(|| self.inner.next_block(name, id, block_end, next))
    }
    fn break_holders(&self, name: &Name, request: BreakRequest) -> Call<usize> {
        self.gate(|| self.inner.break_holders(name, request))
    }
    fn break_waiter(&self, name: &Name, request: WaiterBreak) -> Call<bool> {
        self.gate(|| self.inner.break_waiter(name, request))
    }
    fn waited_for(&self, after: Option<Name>, limit: usize) -> Call<WaitedFor> {
        if after.is_none() {
            self.looks.fetch_add(1, Ordering::Relaxed);
        }
        self.gate(|| self.inner.waited_for(after, limit))
    }
    fn inspect(&self, name: &Name) -> Call<NameView> {
        self.gate(|| self.inner.inspect(name))
    }
    fn scan(&self, prefix: &str, after: Option<Name>, limit: usize) -> Call<Vec<NameView>> {
        self.gate(|| self.inner.scan(prefix, after, limit))
    }

    fn write_memo(&self, name: &Name, write: MemoWrite) -> Call<MemoWritten> {
        if *self.reply.lock().unwrap() == Reply::Delayed {
            // On its way, whoever still wants the answer.
            let (inner, name, open) = (self.inner.clone(), name.clone(), self.open.clone());
            tokio::spawn(async move {
                open.notified().await;
                inner.write_memo(&name, write).await
            });
            return Box::pin(std::future::pending());
        }
        self.gate(|| self.inner.write_memo(name, write))
    }

    fn memo(&self, name: &Name) -> Call<Option<Memo>> {
        self.gate(|| self.inner.memo(name))
    }

    fn time(&self) -> Call<SystemTime> {
        if self.timeless.load(Ordering::Relaxed) {
            return Box::pin(async { Err(Error::new(ErrorKind::Store, "the time is not told")) });
        }
        self.gate(|| self.inner.time())
    }

    fn confirm(&self, claim: RenewRequest, replicas: Replicas) -> Call<Confirmed> {
        self.gate(|| self.inner.confirm(claim, replicas))
    }

    fn confirm_memo(&self, name: &Name, write: MemoWrite, replicas: Replicas) -> Call<Confirmed> {
        self.gate(|| self.inner.confirm_memo(name, write, replicas))
    }

    fn close(&self) -> Call<()> {
        self.inner.close()
    }

    fn examine(&self) -> Call<Checkup> {
        self.inner.examine()
    }
}
