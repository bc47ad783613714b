//! Redlock: N independent Redis masters, with a fencing token.
//!
//! `redlock://H1,H2,H3,H4,H5[/DB]`, `redlocks://…` (TLS). Every request goes to all nodes at once; the answer is there
//! as soon as more than half have given it, so that a slow or dead minority costs nothing. The token is proposed by the
//! client like a ballot (`ballot.rs`): it grows from holder to holder whatever the clocks do, as long as no node
//! forgets what it stored (`appendfsync always`); a node that did takes no part until it can do no harm.
//!
//! | fault | exclusion |
//! |---|---|
//! | client crash | kept: its claims end one ttl later at the latest |
//! | client pause | kept: the deadline is the client's own |
//! | fewer than half of the nodes dead, hung or cut off | kept |
//! | a node's clock steps, several nodes lose their data within a ttl | two leases may be valid at once: only the token protects |
//!
//! Claims do not queue in order: whoever finds a name taken is told by the nodes when it is free, the longest waiting
//! first. `?layout=plain` is the classic algorithm without a token, as redsync and node-redlock have it.

mod attempt;
mod ballot;
#[cfg(test)]
mod check;
mod debts;
mod doctor;
mod fleet;
mod keeper;
#[cfg(test)]
mod model;
mod round;
mod view;
mod wire;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use futures_util::future::{join_all, ready};
use tokio::task::JoinHandle;

use self::attempt::{Attempt, Refused};
use self::fleet::Fleet;
use self::wire::{Ending, InLine, Mine};
use crate::backend::{
    Answer, Backend, Block, BreakRequest, Call, Capabilities, ClaimRequest, Claimed, Event, Guarantees, Listener,
    ReleaseRequest, Released, RenewRequest, Renewed, Shape, Survival, carried,
};
use crate::backends::redis::foreign;
use crate::backends::redis::inbox::Ear;
use crate::backends::redis::scan::Pages;
use crate::backends::redis::url::{Layout, Settings};
use crate::clock::{Clock, Moment};
use crate::doctor::Checkup;
use crate::error::{Error, ErrorKind, Result};
use crate::machine::NameView;
use crate::name::Name;
use crate::owner::ClaimId;
use crate::token::Token;

/// How often all claims are asked for because a node was away.
const RESUBSCRIBED_EVERY: Duration = Duration::from_secs(1);
/// How many messages that belong together are remembered, and for how long.
const HEARD_MAX: usize = 1024;
const HEARD_FOR: Duration = Duration::from_millis(100);

/// One client of a fleet.
#[derive(Debug)]
pub struct RedlockBackend {
    inner: Arc<Inner>,
    keeper: JoinHandle<()>,
}

impl Drop for RedlockBackend {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

struct Inner {
    fleet: Arc<Fleet>,
    channel: Arc<str>,
    ear: Ear,
    /// What this client has, by its id: nodes want to hear the token with every request.
    claims: Mutex<HashMap<ClaimId, Mine, RandomState>>,
    /// Claims that were refused and may be asked for again.
    refused: Mutex<HashMap<ClaimId, Refused, RandomState>>,
    /// The token that was proposed last.
    proposed: AtomicU64,
    pages: Pages,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.fleet.fmt(f)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RedlockBackend {
    /// Connects to the nodes a URL names: more than half of them must answer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a URL that is none, or names one server twice; [`ErrorKind::Quorum`] if too few
    /// nodes answer, with the reason of each; [`ErrorKind::Denied`] for wrong credentials.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is claimed yet.
    pub async fn open(url: &str, clock: Arc<dyn Clock>) -> Result<Self> {
        let settings = Arc::new(Settings::parse(url)?);
        let shown = settings.shown.clone();
        let channel: Arc<str> = format!("tenure:inbox:{:016x}", rand::random::<u64>()).into();
        let ear = Ear::default();
        let opened = Fleet::open(settings, clock, channel.clone(), ear.clone()).await;
        let (fleet, keeper) = opened.map_err(|error| error.in_store(shown))?;
        let inner = Inner {
            fleet,
            channel,
            ear,
            claims: Mutex::default(),
            refused: Mutex::default(),
            proposed: AtomicU64::new(0),
            pages: Pages::default(),
        };
        Ok(Self { inner: Arc::new(inner), keeper })
    }
}

impl Backend for RedlockBackend {
    fn capabilities(&self) -> Capabilities {
        let plain = self.inner.fleet.layout() == Layout::Plain;
        Capabilities {
            tokens: !plain,
            shared: false,
            permits: false,
            sessions: false,
            notes: !plain,
            hints: !plain,
            memos: false,
            time: false,
            ..Capabilities::ALL.without_queue()
        }
    }

    fn guarantees(&self) -> Guarantees {
        guarantees(self.inner.fleet.layout())
    }

    fn url(&self) -> &str {
        &self.inner.fleet.settings.shown
    }

    fn listen(&self, listener: Listener) {
        let needed = self.inner.fleet.quorum();
        let clock = self.inner.fleet.clock.clone();
        let heard = Mutex::new(HashMap::new());
        let resubscribed = AtomicU64::new(0);
        self.inner.ear.listen(Arc::new(move |event| {
            let what = match &event {
                Event::TryNow { id, after, .. } => (*id, *after),
                Event::Ended { id, .. } => (*id, Token(u64::MAX)),
                Event::Resubscribed => {
                    // One node that comes and goes must not have everything asked for again and again.
                    let now = clock.now();
                    let before = Moment(resubscribed.load(Ordering::Acquire));
                    if before == Moment(0) || now.since(before) >= RESUBSCRIBED_EVERY {
                        resubscribed.store(now.as_micros(), Ordering::Release);
                        listener(event);
                    }
                    return;
                }
                Event::Granted { .. } => return listener(event),
            };
            if is_common(&heard, what, needed, clock.now()) {
                listener(event);
            }
        }));
    }

    fn claim(&self, name: &Name, request: ClaimRequest) -> Call<Answer<Claimed>> {
        let inner = self.inner.clone();
        if request.shape != Shape::Exclusive {
            let message = "Redlock has neither shared locks nor semaphores: take another store for those";
            return Box::pin(ready(Err(Error::new(ErrorKind::Conflict, message).about(name))));
        }
        let attempt = Attempt::begin(inner, name.clone(), request);
        carried(&self.inner.fleet.runtime, attempt.run())
    }

    fn renew(&self, batch: Vec<RenewRequest>, fresh: bool) -> Call<Answer<Vec<Renewed>>> {
        let counted_from = self.inner.fleet.clock.now();
        let inner = self.inner.clone();
        let reach = inner.fleet.reach();
        let mine: Vec<Option<Mine>> = {
            let mut claims = lock(&inner.claims);
            let mine = |claim: &RenewRequest| {
                let mine = claims.get_mut(&claim.id)?;
                // It may reach nodes that missed the claim.
                mine.touched |= reach;
                mine.until = mine.until.max(counted_from + claim.ttl);
                Some(mine.clone())
            };
            batch.iter().map(mine).collect()
        };
        let answers = round::renew(&inner.fleet, batch.into_iter().zip(mine).collect(), fresh);
        carried(&self.inner.fleet.runtime, async move {
            let value = answers.await.into_iter().map(|answer| inner.take_note(answer)).collect();
            Ok(Answer { value, counted_from })
        })
    }

    fn release(&self, name: &Name, request: ReleaseRequest) -> Call<Released> {
        let ReleaseRequest { id, number, waiting_only, owner: _ } = request;
        let inner = &self.inner;
        if waiting_only {
            // No node keeps a claim that waits.
            let (fleet, name) = (inner.fleet.clone(), name.clone());
            return carried(&inner.fleet.runtime, async move {
                Ok(foreign::unless_it_waits(&view::inspect(&fleet, &name).await?, id, number))
            });
        }
        let waits = lock(&inner.refused).remove(&id).is_some();
        let mine = {
            let mut claims = lock(&inner.claims);
            let named = claims.get(&id).is_some_and(|mine| number.is_none_or(|number| number == mine.number()));
            if named { claims.remove(&id) } else { None }
        };
        let place = match &mine {
            Some(mine) => mine.place(),
            None if waits => InLine::Leaves,
            None => InLine::None,
        };
        // Where a token is known it says which claims are meant; a node may have an earlier proposal of this one.
        let number = mine.as_ref().map_or(number, Mine::number_of_its_own);
        let ending = Ending { name: name.clone(), id, token: mine.as_ref().map(|mine| mine.highest), number, place };
        let touched = mine.map_or_else(|| inner.fleet.everywhere(), |mine| mine.touched);
        carried(&inner.fleet.runtime, round::end(&inner.fleet, ending, touched))
    }

    fn decline(&self, name: &Name, id: ClaimId) -> Call<()> {
        let fleet = self.inner.fleet.clone();
        lock(&self.inner.refused).remove(&id);
        let ending = Ending { name: name.clone(), id, token: None, number: None, place: InLine::OnlyLeaves };
        let work = || wire::release(fleet.layout(), &ending);
        let calls: Vec<_> = (0..fleet.members.len()).filter_map(|index| fleet.ask(index, work(), false)).collect();
        carried(&self.inner.fleet.runtime, async move {
            join_all(calls).await;
            Ok(())
        })
    }

    fn next_block(&self, name: &Name, _: ClaimId, _: Token, _: ClaimRequest) -> Call<Answer<Block>> {
        let message = "Redlock reserves no blocks of tokens";
        Box::pin(ready(Err(Error::new(ErrorKind::Invalid, message).about(name))))
    }

    fn break_holders(&self, name: &Name, request: BreakRequest) -> Call<usize> {
        let (fleet, name) = (self.inner.fleet.clone(), name.clone());
        carried(&self.inner.fleet.runtime, async move { view::break_holders(&fleet, &name, &request).await })
    }

    fn inspect(&self, name: &Name) -> Call<NameView> {
        let (fleet, name) = (self.inner.fleet.clone(), name.clone());
        carried(&self.inner.fleet.runtime, async move { view::inspect(&fleet, &name).await })
    }

    fn scan(&self, prefix: &str, after: Option<Name>, limit: usize) -> Call<Vec<NameView>> {
        let (inner, prefix) = (self.inner.clone(), prefix.to_owned());
        carried(&self.inner.fleet.runtime, async move {
            view::scan(&inner.fleet, &inner.pages, &prefix, after, limit).await
        })
    }

    fn examine(&self) -> Call<Checkup> {
        let fleet = &self.inner.fleet;
        carried(&fleet.runtime, doctor::examine(fleet.settings.clone(), fleet.clock.clone()))
    }
}

fn guarantees(layout: Layout) -> Guarantees {
    let plain = layout == Layout::Plain;
    let fenced = if plain { Survival::Unprotected } else { Survival::FencedOnly };
    Guarantees {
        store: "redlock",
        time: "each node's own wall clock; no two need to agree",
        client_crash: Survival::Kept,
        client_pause: if plain { Survival::Unprotected } else { Survival::Kept },
        store_crash: fenced,
        failover: Survival::Never,
        partition: Survival::Kept,
        clock_step: fenced,
        tokens: if plain {
            "there are none in this layout"
        } else {
            "across clock steps, and restarts of any number of nodes with appendfsync always; across the loss of \
             data on fewer than half of the nodes at a time"
        },
        memos: None,
    }
}

/// Looks at the nodes of a URL, whatever state they are in; writes nothing to them.
pub(crate) async fn examine(url: &str, clock: Arc<dyn Clock>) -> Result<Checkup> {
    let settings = Arc::new(Settings::parse(url)?);
    let mut checkup = Checkup::of(&guarantees(settings.layout));
    let found = doctor::examine(settings.clone(), clock).await;
    checkup.add(found.map_err(|error| error.in_store(settings.shown.clone()))?);
    Ok(checkup)
}

/// What nodes have said of late: how many, since when.
type Heard = HashMap<(ClaimId, Token), (usize, Moment)>;

/// Whether so many nodes have said the same that it is the fleet's word; once for each time they do.
fn is_common(heard: &Mutex<Heard>, what: (ClaimId, Token), needed: usize, now: Moment) -> bool {
    let mut heard = lock(heard);
    if heard.len() >= HEARD_MAX {
        heard.retain(|_, (_, since)| now.since(*since) < HEARD_FOR);
    }
    let (count, since) = heard.entry(what).or_insert((0, now));
    if now.since(*since) >= HEARD_FOR {
        (*count, *since) = (0, now);
    }
    *count += 1;
    *count == needed
}

impl Inner {
    /// Forgets a claim that is gone.
    fn take_note(&self, (claim, mine, renewed): (RenewRequest, Option<Mine>, Renewed)) -> Renewed {
        if matches!(renewed, Renewed::Gone | Renewed::Broken { .. }) {
            let mut claims = lock(&self.claims);
            let same = |own: &Mine, mine: &Mine| (own.token, own.attempt) == (mine.token, mine.attempt);
            if let (Some(own), Some(mine)) = (claims.get(&claim.id), &mine)
                && same(own, mine)
            {
                claims.remove(&claim.id);
            }
            drop(claims);
            // The few nodes that still have it must not keep it. One that is not ours is not ours to end.
            if let Some(mine) = mine {
                let (name, id, place) = (claim.name, claim.id, mine.place());
                let ending = Ending { name, id, token: Some(mine.highest), number: mine.number_of_its_own(), place };
                round::end_behind(&self.fleet, ending, mine.touched);
            }
        }
        renewed
    }
}
