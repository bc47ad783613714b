//! Redis: one server, a master that sentinels watch over, or a cluster.
//!
//! `redis://HOST[:PORT][/DB]`, `rediss://…` (TLS), `redis+sentinel://H1,H2,H3/SERVICE[/DB]`, `redis+cluster://H1,H2`.
//! Each operation is one atomic Lua script (`native.lua`) that follows the rule of [`machine`](crate::machine); a free
//! name costs one `SET NX` inside it. Operations pending at the same moment share a call. A waiter is told of its
//! grant over its client's own channel, in the same moment in which the one before it releases.
//!
//! | fault | exclusion |
//! |---|---|
//! | client crash | kept: its claims end one ttl later at the latest |
//! | client pause | kept: the deadline is the client's own |
//! | server restart with `appendfsync always` | kept |
//! | restart that loses data, failover, step of the server's clock | two leases may be valid at once: only the token protects |
//!
//! A memo has a key of its own beside those of its name (`memo.lua`), and lasts as Redis keeps its data.
//!
//! Tokens are the server's time in microseconds, or one more than the last: they grow across restarts, failovers and
//! `FLUSHALL` as long as the new server's clock is not behind what was given.
//!
//! `?layout=plain` and `?layout=redisson` share locks with other libraries instead, without queue and tokens.

#[cfg(test)]
mod check;
pub(super) mod doctor;
pub(super) mod error;
pub(super) mod failure;
pub(super) mod foreign;
pub(super) mod inbox;
pub(super) mod lane;
pub(super) mod memo;
pub(super) mod node;
pub(super) mod op;
pub(super) mod place;
mod replicas;
mod route;
pub(super) mod scan;
pub(super) mod script;
mod speech;
mod state;
mod sync;
pub(super) mod url;
pub(super) mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::future::{join_all, ready};
use redis::Value;
use smallvec::smallvec;
use tokio::runtime::Handle;
use tokio::time::timeout;

use self::failure::{Reply, Values};
use self::inbox::Ear;
use self::lane::Work;
use self::memo::MemoCall;
use self::op::Op;
use self::route::{Route, Shared};
use self::scan::Pages;
use self::script::INSPECT;
use self::url::{Layout, Settings, Topology};
use crate::backend::{
    Answer, Backend, Block, BreakRequest, Call, Capabilities, ClaimRequest, Claimed, Confirmed, Event, Guarantees,
    Listener, Memo, MemoWrite, MemoWritten, MemosSurvive, Refusal, ReleaseRequest, Released, RenewRequest, Renewed,
    Replicas, Standing, Survival, WaitedFor, WaiterBreak, carried,
};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::machine::{Grant, NameView, Shape};
use crate::name::Name;
use crate::owner::ClaimId;
use crate::token::Token;

/// How long one renewal of a batch may take at least before it counts as unanswered.
const RENEWAL_MIN: Duration = Duration::from_millis(50);
/// How many names are looked at in one breath.
const LOOK_AT_ONCE: usize = 256;
/// The master that has this key tells the time: in a cluster all clients ask the same one.
const TIME_KEY: &str = "tenure:time";

/// One client of Redis.
#[derive(Debug)]
pub struct RedisBackend {
    inner: Arc<Inner>,
}

struct Inner {
    route: Route,
    settings: Arc<Settings>,
    clock: Arc<dyn Clock>,
    runtime: Handle,
    channel: Arc<str>,
    seen: Arc<AtomicU64>,
    ear: Ear,
    pages: Pages,
    /// The same for names with a queue.
    queues: Pages,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").field("url", &self.settings.shown).field("route", &self.route).finish_non_exhaustive()
    }
}

impl RedisBackend {
    /// Connects to what a URL names.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a URL that is none, [`ErrorKind::Unavailable`] if no server answers,
    /// [`ErrorKind::Denied`] for wrong credentials, [`ErrorKind::Store`] if the server is too old.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is claimed yet.
    pub async fn open(url: &str, clock: Arc<dyn Clock>) -> Result<Self> {
        let settings = Arc::new(Settings::parse(url)?);
        let channel: Arc<str> = format!("tenure:inbox:{:016x}", rand::random::<u64>()).into();
        let (seen, ear, runtime) = (Arc::<AtomicU64>::default(), Ear::default(), Handle::current());
        let shared = Shared {
            settings: settings.clone(),
            clock: clock.clone(),
            runtime: runtime.clone(),
            seen: seen.clone(),
            channel: channel.clone(),
            ear: ear.clone(),
        };
        let route = Route::open(shared).await.map_err(|error| error.in_store(settings.shown.clone()))?;
        let inner = Inner {
            route,
            settings,
            clock,
            runtime,
            channel,
            seen,
            ear,
            pages: Pages::default(),
            queues: Pages::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    fn layout(&self) -> Layout {
        self.inner.settings.layout
    }

    /// One operation on one name: its value and the server's time.
    fn op(&self, op: Op, fresh: bool) -> impl Future<Output = Result<(Moment, Value)>> + Send + use<> {
        let call = self.inner.route.call_op(op, fresh);
        async move {
            let reply = call.await?;
            let value = reply.values.into_iter().next().unwrap_or(Value::Nil);
            Ok((reply.now, value))
        }
    }

    /// One call about the memo of a name.
    fn memo_call(&self, name: &Name, call: Arc<MemoCall>) -> impl Future<Output = Result<Value>> + Send + use<> {
        let refused = (self.layout() != Layout::Native).then(|| {
            let message = "memos need tenure's own layout: leave `layout` out of the URL";
            Error::new(ErrorKind::Invalid, message).about(name)
        });
        let call = match refused {
            Some(refused) => Err(refused),
            None => Ok(self.inner.route.call(&op::key(name), Work::Memo(call), false)),
        };
        async move { Ok(one(call?.await?.values)) }
    }

    /// One script call on one name.
    fn foreign(&self, name: &Name, work: Work, fresh: bool) -> impl Future<Output = Result<Value>> + Send + use<> {
        let call = self.inner.route.call(name.as_str(), work, fresh);
        async move { Ok(call.await?.values.into_iter().next().unwrap_or(Value::Nil)) }
    }
}

/// One of a batch that fails must not fail the others.
fn renewed(answer: Result<&Value, &Error>) -> Renewed {
    let unknown = |error: &Error| Renewed::Unknown(error.to_string().into());
    match answer {
        Ok(value) => wire::renewed(value).unwrap_or_else(|error| unknown(&error)),
        Err(error) => unknown(error),
    }
}

/// What is not found by a release that was sent again was ended by the first.
fn released(reply: Reply) -> Result<Released> {
    let again = reply.again;
    match wire::released(&one(reply.values))? {
        Released::NotFound if again => Ok(Released::Yes),
        released => Ok(released),
    }
}

/// Remembers the highest token this client was given: its tasks hand the whole block on among themselves.
fn note(seen: &AtomicU64, grant: &Grant) {
    seen.fetch_max(grant.block_end.0, Ordering::AcqRel);
}

impl Backend for RedisBackend {
    fn capabilities(&self) -> Capabilities {
        // A lone server does not know how many replicas it should have.
        let majority = self.inner.settings.topology != Topology::Single || self.inner.settings.replicas.is_some();
        let all = Capabilities { replicas: true, majority, ..Capabilities::ALL };
        match self.layout() {
            Layout::Native => all,
            Layout::Plain | Layout::Redisson => Capabilities {
                tokens: false,
                shared: false,
                permits: false,
                sessions: false,
                records: self.layout() == Layout::Plain,
                notes: false,
                memos: false,
                time: false,
                ..all.without_queue()
            },
        }
    }

    fn guarantees(&self) -> Guarantees {
        let (store, failover) = match self.inner.settings.topology {
            Topology::Single | Topology::Fleet => ("redis", Survival::FencedOnly),
            Topology::Sentinel { .. } => ("redis+sentinel", Survival::FencedOnly),
            Topology::Cluster => ("redis+cluster", Survival::FencedOnly),
        };
        let native = self.layout() == Layout::Native;
        let fenced = if native { Survival::FencedOnly } else { Survival::Unprotected };
        Guarantees {
            store,
            time: "the Redis server's wall clock",
            client_crash: Survival::Kept,
            client_pause: if native { Survival::Kept } else { Survival::Unprotected },
            store_crash: fenced,
            failover: if native { failover } else { Survival::Unprotected },
            partition: fenced,
            clock_step: fenced,
            tokens: if native {
                "across restart, failover and data loss while the new server's clock is not behind the last token"
            } else {
                "there are none in this layout"
            },
            // A crash with `appendfsync always`, a policy of `noeviction`: a server may be set so, but nobody
            // promises it.
            memos: native.then_some(MemosSurvive::new(false, false, false)),
        }
    }

    fn url(&self) -> &str {
        &self.inner.settings.shown
    }

    fn listen(&self, listener: Listener) {
        let seen = self.inner.seen.clone();
        self.inner.ear.listen(Arc::new(move |event| {
            if let Event::Granted { grant, .. } = &event {
                note(&seen, grant);
            }
            listener(event);
        }));
    }

    fn claim(&self, name: &Name, request: ClaimRequest) -> Call<Answer<Claimed>> {
        let counted_from = self.inner.clock.now();
        let asked = (request.shape, request.ttl);
        if let Shape::Permits { units, of } = request.shape
            && (units == 0 || units > of)
        {
            let value = Claimed::Refused(Refusal::Units { asked: request.shape });
            return Box::pin(ready(Ok(Answer { value, counted_from })));
        }
        if self.layout() != Layout::Native {
            let answer = self.foreign(name, foreign::claim(self.layout(), name, &request), false);
            return carried(&self.inner.runtime, async move {
                let value = wire::claimed(&answer.await?, asked, Moment(0))?;
                Ok(Answer { value, counted_from })
            });
        }
        let answer = self.op(Op::claim(name, &request, &self.inner.channel), false);
        let seen = self.inner.seen.clone();
        carried(&self.inner.runtime, async move {
            let (now, value) = answer.await?;
            let value = wire::claimed(&value, asked, now)?;
            if let Claimed::Stands(standing) = &value
                && let Ok(grant) = &standing.state
            {
                note(&seen, grant);
            }
            Ok(Answer { value, counted_from })
        })
    }

    fn renew(&self, batch: Vec<RenewRequest>, fresh: bool) -> Call<Answer<Vec<Renewed>>> {
        let counted_from = self.inner.clock.now();
        let native = self.layout() == Layout::Native;
        if native && !matches!(self.inner.route, Route::Cluster { .. }) {
            let ops = batch.iter().map(|one| Op::renew(&one.name, one.id, one.ttl, one.number)).collect();
            let call = self.inner.route.call("", Work::Ops(ops), fresh);
            let seen = self.inner.seen.clone();
            return carried(&self.inner.runtime, async move {
                let value: Vec<Renewed> = call.await?.values.iter().map(|value| renewed(Ok(value))).collect();
                for one in &value {
                    if let Renewed::Stands(Standing { state: Ok(grant), .. }) = one {
                        note(&seen, grant);
                    }
                }
                Ok(Answer { value, counted_from })
            });
        }
        let calls: Vec<_> = batch
            .iter()
            .map(|one| {
                let call: Call<Value> = if native {
                    let answer = self.op(Op::renew(&one.name, one.id, one.ttl, one.number), fresh);
                    Box::pin(async move { Ok(answer.await?.1) })
                } else {
                    Box::pin(self.foreign(&one.name, foreign::renew(self.layout(), &one.name, one.id, one.ttl), fresh))
                };
                // One server that hangs, or one name that moves, must not hold up what is known of the others.
                let limit = (one.ttl / 9).max(RENEWAL_MIN);
                async move { timeout(limit, call).await.unwrap_or_else(|_| Err(node::no_answer())) }
            })
            .collect();
        carried(&self.inner.runtime, async move {
            let value = join_all(calls).await.iter().map(|answer| renewed(answer.as_ref())).collect();
            Ok(Answer { value, counted_from })
        })
    }

    fn release(&self, name: &Name, request: ReleaseRequest) -> Call<Released> {
        let ReleaseRequest { id, number, waiting_only, owner: _ } = request;
        if self.layout() == Layout::Native {
            let answer = self.inner.route.call_op(Op::release(name, id, number, waiting_only), false);
            return carried(&self.inner.runtime, async move { released(answer.await?) });
        }
        if waiting_only {
            let (inner, name) = (self.inner.clone(), name.clone());
            return carried(&self.inner.runtime, async move {
                Ok(foreign::unless_it_waits(&inner.look_at(&name).await?.0, id, number))
            });
        }
        let work = foreign::release(self.layout(), name, id, number);
        let answer = self.inner.route.call(name.as_str(), work, false);
        carried(&self.inner.runtime, async move { released(answer.await?) })
    }

    fn next_block(&self, name: &Name, id: ClaimId, block_end: Token, next: ClaimRequest) -> Call<Answer<Block>> {
        let counted_from = self.inner.clock.now();
        let answer = self.op(Op::next_block(name, id, block_end, &next, &self.inner.channel), false);
        let seen = self.inner.seen.clone();
        carried(&self.inner.runtime, async move {
            let value = wire::block(&answer.await?.1)?;
            if let Block::Given(grant) | Block::Moved(Standing { state: Ok(grant), .. }) = &value {
                note(&seen, grant);
            }
            Ok(Answer { value, counted_from })
        })
    }

    fn break_holders(&self, name: &Name, request: BreakRequest) -> Call<usize> {
        if self.layout() == Layout::Native {
            let answer = self.op(Op::break_holders(name, &request), false);
            return carried(&self.inner.runtime, async move { wire::ended(&answer.await?.1) });
        }
        // No marks in these layouts: the holder learns at its renewal that its claim is gone. And no tokens, so that
        // nobody holds with one that is low enough.
        let BreakRequest { owner, up_to, .. } = request;
        let (layout, inner, name) = (self.layout(), self.inner.clone(), name.clone());
        carried(&self.inner.runtime, async move {
            let value = one(inner.route.call(name.as_str(), foreign::show(layout, &name), false).await?.values);
            let shown = foreign::view(layout, name.clone(), &value)?;
            let mut ended = 0;
            for held in shown.view.holders {
                if held.owner.is_none() && owner.is_none() {
                    let message = "a foreign client holds it: only that client, or redis-cli, can end it";
                    return Err(Error::new(ErrorKind::Conflict, message).about(&name));
                }
                if up_to.is_some() || (owner.is_some() && held.owner != owner) {
                    continue;
                }
                for (id, number) in held.claims {
                    let work = foreign::release(layout, &name, id, Some(number));
                    let value = one(inner.route.call(name.as_str(), work, false).await?.values);
                    ended += usize::from(wire::released(&value)? == Released::Yes);
                }
            }
            Ok(ended)
        })
    }

    fn break_waiter(&self, name: &Name, request: WaiterBreak) -> Call<bool> {
        if self.layout() != Layout::Native {
            // Nobody waits in these.
            return Box::pin(ready(Ok(false)));
        }
        let answer = self.op(Op::break_waiter(name, &request), false);
        carried(&self.inner.runtime, async move { Ok(wire::ended(&answer.await?.1)? > 0) })
    }

    fn inspect(&self, name: &Name) -> Call<NameView> {
        let (inner, name) = (self.inner.clone(), name.clone());
        carried(&self.inner.runtime, async move { Ok(inner.look_at(&name).await?.0) })
    }

    fn scan(&self, prefix: &str, after: Option<Name>, limit: usize) -> Call<Vec<NameView>> {
        let (inner, prefix) = (self.inner.clone(), prefix.to_owned());
        carried(&self.inner.runtime, async move { inner.scan(&prefix, after, limit).await })
    }

    fn write_memo(&self, name: &Name, write: MemoWrite) -> Call<MemoWritten> {
        let call = self.memo_call(name, MemoCall::write(name, &write));
        carried(&self.inner.runtime, async move { memo::written(&call.await?) })
    }

    fn memo(&self, name: &Name) -> Call<Option<Memo>> {
        let call = self.memo_call(name, MemoCall::read(name));
        carried(&self.inner.runtime, async move { memo::read(&call.await?) })
    }

    fn time(&self) -> Call<SystemTime> {
        let member = self.inner.route.member(TIME_KEY);
        carried(&self.inner.runtime, async move { wire::time(&member?.node.command(redis::cmd("TIME")).await?) })
    }

    fn waited_for(&self, after: Option<Name>, limit: usize) -> Call<WaitedFor> {
        if self.layout() != Layout::Native {
            return Box::pin(ready(Ok(WaitedFor::default())));
        }
        let inner = self.inner.clone();
        carried(&self.inner.runtime, async move { inner.waited_for(after.as_ref(), limit.min(LOOK_AT_ONCE)).await })
    }

    fn confirm(&self, claim: RenewRequest, replicas: Replicas) -> Call<Confirmed> {
        let inner = self.inner.clone();
        carried(&self.inner.runtime, async move { inner.confirm(&claim, replicas).await })
    }

    fn confirm_memo(&self, name: &Name, write: MemoWrite, replicas: Replicas) -> Call<Confirmed> {
        let (inner, again) = (self.inner.clone(), MemoCall::write_again(name, &write));
        let key = op::key(name);
        carried(&self.inner.runtime, async move { inner.confirm_write(&key, Work::Memo(again), replicas).await })
    }

    fn examine(&self) -> Call<crate::Checkup> {
        let (settings, clock) = (self.inner.settings.clone(), self.inner.clock.clone());
        carried(&self.inner.runtime, doctor::examine(settings, clock))
    }
}

fn one(values: Values) -> Value {
    values.into_iter().next().unwrap_or(Value::Nil)
}

impl Inner {
    /// What Redis has of a name, and whether it is surely a lock.
    async fn look_at(&self, name: &Name) -> Result<(NameView, bool)> {
        let layout = self.settings.layout;
        if layout == Layout::Native {
            let key = op::key(name);
            let work = Work::Script { script: &INSPECT, key: key.clone(), args: Vec::new() };
            let value = one(self.route.call(&key, work, false).await?.values);
            let (now, queue) = state::queue(&value)?;
            return Ok((NameView::of(name.clone(), &queue, now), true));
        }
        let value = one(self.route.call(name.as_str(), foreign::show(layout, name), false).await?.values);
        let shown = foreign::view(layout, name.clone(), &value)?;
        Ok((shown.view, shown.ours))
    }

    async fn scan(&self, prefix: &str, after: Option<Name>, limit: usize) -> Result<Vec<NameView>> {
        let mut views = Vec::new();
        let mut after = after;
        while views.len() < limit {
            let names = self.names(prefix, after.as_ref(), LOOK_AT_ONCE.min(limit)).await?;
            let Some(last) = names.last().cloned() else { break };
            let looks = join_all(names.iter().map(|name| self.look_at(name))).await;
            for look in looks {
                let (view, is_lock) = look?;
                if is_lock && !view.is_free() && views.len() < limit {
                    views.push(view);
                }
            }
            after = Some(last);
        }
        Ok(views)
    }

    /// The next names that somebody waits for. Only the keys of queues are looked into: a name that one claim holds
    /// has none.
    async fn waited_for(&self, after: Option<&Name>, limit: usize) -> Result<WaitedFor> {
        let pattern = scan::pattern(op::KEY_PREFIX, "", "}order");
        let name_of = |key: &[u8]| key.strip_suffix(b"order").and_then(op::name_of);
        let members = self.route.members();
        let names = self.queues.next("", after, limit, async |found| {
            for member in members {
                scan::keys(&member.node, &pattern, None, |key| found.take(name_of(key))).await?;
            }
            Ok(())
        });
        let names = names.await?;
        let looks = join_all(names.iter().map(|name| self.look_at(name))).await;
        let views: Result<Vec<NameView>> = looks.into_iter().map(|look| Ok(look?.0)).collect();
        let more = names.last().filter(|_| names.len() >= limit).cloned();
        Ok(WaitedFor { after: more, ..WaitedFor::among(views?) })
    }

    /// The next names in byte order.
    async fn names(&self, prefix: &str, after: Option<&Name>, count: usize) -> Result<Vec<Name>> {
        let native = self.settings.layout == Layout::Native;
        let kind = match self.settings.layout {
            Layout::Native => None,
            Layout::Plain => Some("string"),
            Layout::Redisson => Some("hash"),
        };
        let pattern = if native { scan::pattern(op::KEY_PREFIX, prefix, "}") } else { scan::pattern("", prefix, "") };
        let name_of = |key: &[u8]| if native { op::name_of(key) } else { scan::bare_name(key) };
        let members = self.route.members();
        self.pages
            .next(prefix, after, count, async |found| {
                for member in members {
                    scan::keys(&member.node, &pattern, kind, |key| found.take(name_of(key))).await?;
                }
                Ok(())
            })
            .await
    }

    /// Renews a claim, and waits until enough replicas have it.
    async fn confirm(&self, claim: &RenewRequest, replicas: Replicas) -> Result<Confirmed> {
        let RenewRequest { name, id, ttl, .. } = claim;
        let (key, renewal) = if self.settings.layout == Layout::Native {
            (op::key(name), Work::Ops(smallvec![Op::renew(name, *id, *ttl, None)]))
        } else {
            (name.as_str().to_owned(), foreign::renew(self.settings.layout, name, *id, *ttl))
        };
        self.confirm_write(&key, renewal, replicas).await
    }

    /// Writes to the server that has this key, and waits until enough replicas have it.
    async fn confirm_write(&self, key: &str, write: Work, replicas: Replicas) -> Result<Confirmed> {
        let member = self.route.member(key)?;
        let needed = match replicas {
            Replicas::AtLeast(needed) => u64::from(needed),
            Replicas::Majority => member.replicas.majority(&member.node, &self.settings, &*self.clock).await?,
        };
        let acknowledged = member.sync.wait_for(needed, write).await?;
        Ok(Confirmed { acknowledged, needed })
    }
}

/// A field of the answer to INFO.
pub(super) fn info_field<'a>(info: &'a str, field: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(str::trim)
}
