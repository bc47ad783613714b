//! The way to the cluster: one member at a time, another one when it fails.

use std::future::{Future, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::Mutex;
use tonic::Status;

use super::entry::Keys;
use super::error::{in_words, is_of_the_member, is_stale_login, no_answer, translate};
use super::link::{ANSWER_MAX, Link};
use super::url::Settings;
use super::wire::{TxnRequest, TxnResponse};
use crate::clock::{Clock, Moment};
use crate::error::{Certainty, Error, Result};

/// How much later than the one before it each member is tried.
const STAGGER: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct Road {
    pub(super) settings: Settings,
    /// Held while a new link is opened, so that many who need one open one.
    current: Mutex<Current>,
    first: AtomicUsize,
    /// The cluster of the first member that answered; zero before that.
    cluster: AtomicU64,
    clock: Arc<dyn Clock>,
}

#[derive(Debug, Default)]
struct Current {
    link: Option<Arc<Link>>,
    /// When no member was found, and why.
    failed: Option<(Moment, Error)>,
}

impl Road {
    pub(super) fn new(settings: Settings, clock: Arc<dyn Clock>) -> Self {
        // Clients spread over the members.
        let first = AtomicUsize::new(rand::random_range(0..settings.members.len().max(1)));
        Self { settings, current: Mutex::default(), first, cluster: AtomicU64::new(0), clock }
    }

    /// The link in use, or a new one.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at worst a connection was opened in vain.
    pub(super) async fn link(&self) -> Result<Arc<Link>> {
        let asked = self.clock.now();
        let mut current = self.current.lock().await;
        if let Some(link) = current.link.as_ref().filter(|link| !link.is_left()) {
            if !link.is_silent(self.clock.now(), ANSWER_MAX) {
                return Ok(link.clone());
            }
            // Whoever asked gave up before it was known to hang.
            self.leave(link);
        }
        if let Some((_, error)) = current.failed.as_ref().filter(|(at, _)| *at >= asked) {
            // All members were tried while this waited for its turn to try them.
            return Err(error.again().with_certainty(Certainty::NotApplied));
        }
        match self.open().await {
            Ok(link) => {
                *current = Current { link: Some(link.clone()), failed: None };
                Ok(link)
            }
            Err(error) => {
                current.failed = Some((self.clock.now(), error.again()));
                Err(error)
            }
        }
    }

    /// A link that answers, as far as is known: one over which something went unanswered for about so long is left.
    /// Of many that miss an answer, the first finds a new link for all; and one that answers is kept, whatever
    /// somebody thought of an answer.
    ///
    /// # Cancel safety
    ///
    /// As [`link`](Self::link).
    pub(super) async fn fresh(&self, unanswered: Duration) -> Result<Arc<Link>> {
        if let Some(link) = self.current.lock().await.link.as_ref()
            // Whoever waited so long began to wait a little before the request was sent.
            && link.is_silent(self.clock.now(), unanswered / 2)
        {
            self.leave(link);
        }
        self.link().await
    }

    /// This link failed: the next one leads to another member.
    pub(super) fn leave(&self, link: &Link) {
        if link.leave() {
            self.first.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Tries all members, each a little after the one before it; the first that answers for the cluster is taken.
    async fn open(&self) -> Result<Arc<Link>> {
        let members = &self.settings.members;
        let first = self.first.load(Ordering::Relaxed);
        let mut tries: FuturesUnordered<_> = (0..members.len())
            .filter_map(|turn| {
                let member = members.get((first + turn) % members.len())?;
                let probe = Keys::new(self.settings.prefix.clone()).notes();
                let pause = STAGGER.saturating_mul(u32::try_from(turn).unwrap_or(u32::MAX));
                Some(async move {
                    let _ = tokio::time::timeout(pause, pending::<()>()).await;
                    let login = self.settings.login.as_ref();
                    let opened = Link::open(member, login, probe, self.clock.clone()).await;
                    match opened.and_then(|link| self.of_the_cluster(link)) {
                        Ok(link) => Ok(link),
                        Err(status) if is_of_the_member(&status) => {
                            let misfit = member.misfit(&status).await;
                            Err((member, status, misfit))
                        }
                        Err(status) => Err((member, status, None)),
                    }
                })
            })
            .collect();
        let mut failures = Vec::new();
        let (mut refusal, mut misfits) = (None, Vec::new());
        while let Some(tried) = tries.next().await {
            match tried {
                Ok(link) => return Ok(link),
                Err((member, status, misfit)) => {
                    failures.push(format!("{}: {}", member.address, in_words(&status)));
                    misfits.extend(misfit);
                    if !is_of_the_member(&status) {
                        refusal = refusal.or(Some(status));
                    }
                }
            }
        }
        // The others alone are no cluster: waiting for them does not help.
        if misfits.len() * 2 > members.len()
            && let Some(misfit) = misfits.into_iter().next()
        {
            return Err(misfit);
        }
        let error = refusal.as_ref().map_or_else(no_answer, translate).with_certainty(Certainty::NotApplied);
        Err(error.because(failures.join("; ")))
    }

    /// A member of another cluster knows nothing of this one's locks: what was held here would be free there.
    fn of_the_cluster(&self, link: Arc<Link>) -> std::result::Result<Arc<Link>, Status> {
        let cluster = link.seen().map_or(0, |header| header.cluster_id);
        match self.cluster.compare_exchange(0, cluster, Ordering::AcqRel, Ordering::Acquire) {
            Err(known) if known != cluster => Err(Status::unavailable("it belongs to another cluster")),
            _ => Ok(link),
        }
    }

    /// Asks once; again over another link if the login had run out, which changes nothing.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome of what was asked unknown.
    pub(super) async fn ask<T, F>(&self, question: impl Fn(Arc<Link>) -> F) -> std::result::Result<T, Failure>
    where
        F: Future<Output = std::result::Result<T, Status>>,
    {
        let link = self.link().await.map_err(Failure::Unreachable)?;
        match question(link.clone()).await {
            Err(status) if is_stale_login(&status) => {
                self.leave(&link);
                let link = self.link().await.map_err(Failure::Unreachable)?;
                self.judged(&link, question(link.clone()).await)
            }
            answer => self.judged(&link, answer),
        }
    }

    /// Runs a transaction.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves its outcome unknown.
    pub(super) async fn txn(&self, request: &TxnRequest) -> std::result::Result<TxnResponse, Failure> {
        self.ask(|link| {
            let request = request.clone();
            async move { link.txn(request).await }
        })
        .await
    }

    /// Leaves the link if its member failed.
    pub(super) fn judged<T>(
        &self,
        link: &Link,
        answer: std::result::Result<T, Status>,
    ) -> std::result::Result<T, Failure> {
        answer.map_err(|status| {
            if is_of_the_member(&status) || is_stale_login(&status) {
                self.leave(link);
            }
            Failure::Told(status)
        })
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// No member was reached: nothing was asked.
    Unreachable(crate::Error),
    /// A member refused, or did not answer.
    Told(Status),
}

impl From<Failure> for crate::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unreachable(error) => error,
            Failure::Told(status) => translate(&status),
        }
    }
}
