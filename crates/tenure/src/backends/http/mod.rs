//! A service (`tenure serve`) as a store: the same locks, one HTTP request away.
//!
//! The service keeps the claims in a store of its own; what that store guarantees holds here too, with one thing added:
//! the deadline of a lease counts from before the request was sent to the service.
//!
//! A claim that waits is asked for again and again with a long wait (`poll`), so that its grant is heard at once. Each
//! such request gives the claim a new number in the store; the engine is told the first one for all of the claim's life
//! (`table`).

mod answer;
mod doctor;
mod identity;
mod link;
mod memos;
mod poll;
mod request;
mod table;
mod url;
mod view;

pub use identity::{claim_id, shown_owner};

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::backend::{
    Answer, Backend, Block, BreakRequest, Call, Capabilities, ClaimRequest, Claimed, Guarantees, Listener, Memo,
    MemoWrite, MemoWritten, ReleaseRequest, Released, RenewRequest, Renewed, carried,
};
use crate::clock::{Clock, Moment};
use crate::doctor::Checkup;
use crate::error::{Error, ErrorKind, Result};
use crate::machine::NameView;
use crate::name::Name;
use crate::owner::{ClaimId, Owner};
use crate::token::Token;

use answer::{Store, problem};
use link::Link;
use request::{Acquire, Release, Renew};
use table::Table;
use url::Settings;

/// How many claims one renewal names.
const RENEWALS_MAX: usize = 1_000;
/// How many claims are polled for at once: each takes a connection, and renewals need some too.
const POLLS_MAX: usize = 256;
/// How many names one page has at most.
const PAGE_MAX: usize = 1_000;

/// A client of a service.
pub struct HttpBackend {
    client: Arc<Client>,
}

/// What operations share.
struct Client {
    link: Link,
    /// Who we are to the service.
    caller: String,
    capabilities: Capabilities,
    guarantees: Guarantees,
    table: Table,
    listener: OnceLock<Listener>,
    /// How many requests may wait at the service at once. What waits beyond hears of its grant by its renewals.
    polls: Semaphore,
    clock: Arc<dyn Clock>,
    runtime: Handle,
}

impl HttpBackend {
    /// Connects to the service of an `http://` or `https://` URL.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a URL that is none, [`ErrorKind::Denied`] if the service does not know the token,
    /// [`ErrorKind::Unavailable`] if it cannot be reached.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is claimed yet.
    pub async fn open(url: &str, clock: Arc<dyn Clock>) -> Result<Self> {
        let link = Link::new(Settings::parse(url)?)?;
        let (status, body) = match link.get("/v1/store").await {
            Ok(answer) => answer,
            Err(error) => return Err(link.misfit(&error).await.unwrap_or(error).in_store(link.shown())),
        };
        if status != 200 {
            return Err(problem(status, &body).in_store(link.shown()));
        }
        let store: Store = answer::read(&body).map_err(|error| error.in_store(link.shown()))?;
        let client = Client {
            capabilities: store.capabilities(),
            guarantees: store.guarantees(),
            caller: store.caller,
            link,
            table: Table::default(),
            listener: OnceLock::new(),
            polls: Semaphore::new(POLLS_MAX),
            clock,
            runtime: Handle::current(),
        };
        Ok(Self { client: Arc::new(client) })
    }
}

impl fmt::Debug for HttpBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpBackend").field("url", &self.client.link.shown()).finish_non_exhaustive()
    }
}

impl Drop for HttpBackend {
    fn drop(&mut self) {
        self.client.table.close();
    }
}

impl Backend for HttpBackend {
    fn capabilities(&self) -> Capabilities {
        self.client.capabilities
    }

    fn guarantees(&self) -> Guarantees {
        self.client.guarantees
    }

    fn url(&self) -> &str {
        self.client.link.shown()
    }

    fn listen(&self, listener: Listener) {
        let _ = self.client.listener.set(listener);
    }

    fn claim(&self, name: &Name, request: ClaimRequest) -> Call<Answer<Claimed>> {
        let (client, name) = (self.client.clone(), name.clone());
        // A task of its own, so that a caller that leaves does not leave a request on its way that a release overtakes.
        Box::pin(async move {
            let (under_way, before) = client.table.begin(request.id);
            let runtime = client.runtime.clone();
            let task = runtime.spawn(async move {
                if let Some(before) = before {
                    before.answered().await;
                }
                let answer = client.claim(name, request).await;
                drop(under_way);
                answer
            });
            task.await.unwrap_or_else(|_| Err(over()))
        })
    }

    fn renew(&self, batch: Vec<RenewRequest>, fresh: bool) -> Call<Answer<Vec<Renewed>>> {
        // A connection on which something is under way is not used by others anyway. But the instance may hang.
        if fresh {
            self.client.link.go_elsewhere();
        }
        let client = self.client.clone();
        carried(&self.client.runtime, async move { client.renew(batch).await })
    }

    fn release(&self, name: &Name, request: ReleaseRequest) -> Call<Released> {
        let (client, name) = (self.client.clone(), name.clone());
        carried(&self.client.runtime, async move { client.release(&name, request).await })
    }

    fn next_block(&self, name: &Name, _: ClaimId, _: Token, _: ClaimRequest) -> Call<Answer<Block>> {
        let error = Error::new(ErrorKind::Invalid, "a service gives no blocks of tokens").about(name);
        Box::pin(async { Err(error) })
    }

    fn break_holders(&self, name: &Name, request: BreakRequest) -> Call<usize> {
        let (client, name) = (self.client.clone(), name.clone());
        carried(&self.client.runtime, async move { client.break_holders(&name, request).await })
    }

    fn inspect(&self, name: &Name) -> Call<NameView> {
        let (client, name) = (self.client.clone(), name.clone());
        carried(&self.client.runtime, async move { client.inspect(&name).await })
    }

    fn scan(&self, prefix: &str, after: Option<Name>, limit: usize) -> Call<Vec<NameView>> {
        let (client, prefix) = (self.client.clone(), prefix.to_owned());
        carried(&self.client.runtime, async move { client.scan(&prefix, after, limit).await })
    }

    fn write_memo(&self, name: &Name, write: MemoWrite) -> Call<MemoWritten> {
        let (client, name) = (self.client.clone(), name.clone());
        carried(&self.client.runtime, async move { client.write_memo(&name, write).await })
    }

    fn memo(&self, name: &Name) -> Call<Option<Memo>> {
        let (client, name) = (self.client.clone(), name.clone());
        carried(&self.client.runtime, async move { client.memo(&name).await })
    }

    fn time(&self) -> Call<SystemTime> {
        let client = self.client.clone();
        carried(&self.client.runtime, async move { client.time().await })
    }

    fn shown(&self, owner: &Owner, name: &Name, id: ClaimId) -> (Owner, ClaimId) {
        let shown = shown_owner(&self.client.caller, &owner.to_string());
        let id = claim_id(&shown, name, &id.to_string());
        (shown, id)
    }

    fn examine(&self) -> Call<Checkup> {
        let client = self.client.clone();
        carried(&self.client.runtime, async move { doctor::examine(&client).await })
    }
}

fn over() -> Error {
    Error::new(ErrorKind::Closed, "the runtime that the client was connected on has ended")
}

impl Client {
    fn now(&self) -> Moment {
        self.clock.now()
    }

    async fn claim(self: Arc<Self>, name: Name, request: ClaimRequest) -> Result<Answer<Claimed>> {
        // A poll under way would take the claim from this request, and this request from it.
        self.table.silence(request.id);
        let mut ask = Acquire::of(&name, &request, Duration::ZERO, None);
        ask.queue &= self.capabilities.queue;
        let mut tries = 0;
        let (sent, status, reply) = loop {
            let sent = self.now();
            let (status, body) = self.link.post("/v1/acquire", &ask).await?;
            let reply = answer::read_reply(status, &body)?;
            // A late copy of our own request may have come between, once.
            if reply.kind.as_deref() != Some("superseded") || tries > 0 {
                break (sent, status, reply);
            }
            tries += 1;
        };
        let counted_from = reply.counted_from(sent);
        let value = match (status, reply.refusal()) {
            (200 | 202, _) => {
                let standing = reply.standing(status == 200)?;
                let number = self.table.stands(&name, &request, &standing);
                if self.table.is_unwanted(request.id) {
                    let end = ReleaseRequest::new(request.owner.clone(), request.id);
                    // Should that fail, its ttl ends it: nobody renews it.
                    let _ = self.link.post("/v1/release", &Release::of(&name, &end, None)).await;
                    self.table.ended(request.id);
                } else if standing.state.is_err() {
                    poll::begin(&self, request.id);
                }
                Claimed::Stands(crate::machine::Standing { number, ..standing })
            }
            (_, Some(refusal)) => Claimed::Refused(refusal.into_refusal(request.shape)),
            (409, None) if matches!(reply.kind.as_deref(), Some("busy" | "timeout")) => Claimed::Busy(reply.place()),
            _ => return Err(reply.error(status).about(&name)),
        };
        Ok(Answer { value, counted_from })
    }

    async fn renew(self: Arc<Self>, batch: Vec<RenewRequest>) -> Result<Answer<Vec<Renewed>>> {
        let mut all = Vec::with_capacity(batch.len());
        let mut earliest = None;
        for part in batch.chunks(RENEWALS_MAX) {
            let sent = self.now();
            // Of a claim that is not the one that was meant no number is right.
            let number = |claim: &RenewRequest| self.table.number(claim.id, claim.number).unwrap_or(Some(0));
            let asked = self.link.post("/v1/renew", &Renew::of(part, number)).await;
            let replies = asked.and_then(|(status, body)| answer::read_replies(status, &body, part.len()));
            let replies = match replies {
                Ok(replies) => replies,
                // Of a batch that went out in parts, what was answered counts.
                Err(error) if all.is_empty() && part.len() == batch.len() => return Err(error),
                Err(error) => {
                    all.extend(part.iter().map(|_| Renewed::Unknown(error.to_string().into())));
                    continue;
                }
            };
            for (claim, reply) in part.iter().zip(replies) {
                if reply.expires_in_ms.is_some() {
                    let counted_from = reply.counted_from(sent);
                    earliest = Some(earliest.map_or(counted_from, |earliest: Moment| earliest.min(counted_from)));
                }
                all.push(self.renewed(claim, &reply));
            }
        }
        Ok(Answer { value: all, counted_from: earliest.unwrap_or_else(|| self.now()) })
    }

    fn renewed(self: &Arc<Self>, claim: &RenewRequest, reply: &answer::Reply) -> Renewed {
        match reply.state.as_deref() {
            Some(state @ ("held" | "waiting")) => match reply.standing(state == "held") {
                Ok(standing) => {
                    let number = self.table.renewed(claim.id, &standing);
                    if standing.state.is_err() {
                        poll::begin(self, claim.id);
                    }
                    Renewed::Stands(crate::machine::Standing { number, ..standing })
                }
                Err(error) => Renewed::Unknown(error.to_string().into()),
            },
            Some("lost") => {
                self.table.ended(claim.id);
                Renewed::Gone
            }
            Some("broken") => {
                self.table.ended(claim.id);
                let (by, reason) = reply.broken();
                Renewed::Broken { by, reason }
            }
            _ => Renewed::Unknown(reply.message.clone().unwrap_or_else(|| "no answer".to_owned()).into()),
        }
    }

    async fn release(self: Arc<Self>, name: &Name, request: ReleaseRequest) -> Result<Released> {
        let number = match self.table.number(request.id, request.number) {
            Ok(number) => number,
            Err(table::AnotherNumber) => return Ok(Released::NotFound),
        };
        if !request.waiting_only {
            // Whoever polls would only find it gone.
            self.table.silence(request.id);
            // Should this be given up before the claim is answered, whoever hears the answer ends it.
            self.table.unwanted(request.id);
        }
        if let Some(claim) = self.table.under_way(request.id) {
            claim.answered().await;
        }
        let (status, body) = self.link.post("/v1/release", &Release::of(name, &request, number)).await?;
        let reply = answer::read_reply(status, &body)?;
        let released = match (status, reply.kind.as_deref()) {
            (200, _) => Released::Yes,
            (410, Some("broken")) => {
                let (by, reason) = reply.broken();
                Released::Broken { by, reason }
            }
            (410, _) => Released::NotFound,
            (409, Some("holds")) => return Ok(Released::Holds),
            _ => return Err(reply.error(status).about(name)),
        };
        self.table.ended(request.id);
        Ok(released)
    }

    async fn break_holders(self: Arc<Self>, name: &Name, request: BreakRequest) -> Result<usize> {
        let up_to = match request.up_to {
            Some(token) => token,
            // The service wants to know whom: all that hold now.
            None => match self.inspect(name).await?.holders.iter().filter_map(|holder| holder.token).max() {
                Some(token) => token,
                None => return Ok(0),
            },
        };
        let mut query = url::Query::new("/v1/lock").with("name", name.as_str()).with("token", &up_to.0.to_string());
        if let Some(owner) = &request.owner {
            query = query.with("owner", &owner.to_string());
        }
        let query = query.with("reason", &request.reason).with("by", &request.by);
        let (status, body) = self.link.delete(query.as_str()).await?;
        let reply = answer::read_reply(status, &body)?;
        if status == 200 { Ok(reply.broken.unwrap_or(0)) } else { Err(reply.error(status).about(name)) }
    }

    async fn inspect(&self, name: &Name) -> Result<NameView> {
        let query = url::Query::new("/v1/lock").with("name", name.as_str());
        let (status, body) = self.link.get(query.as_str()).await?;
        if status != 200 {
            return Err(problem(status, &body).about(name));
        }
        view::one(&body)
    }

    async fn scan(&self, prefix: &str, after: Option<Name>, limit: usize) -> Result<Vec<NameView>> {
        let limit = limit.clamp(1, PAGE_MAX).to_string();
        let mut query = url::Query::new("/v1/locks").with("prefix", prefix).with("limit", &limit);
        if let Some(after) = &after {
            query = query.with("after", after.as_str());
        }
        let (status, body) = self.link.get(query.as_str()).await?;
        if status == 200 { view::many(&body) } else { Err(problem(status, &body)) }
    }
}
