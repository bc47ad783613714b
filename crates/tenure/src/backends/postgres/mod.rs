//! PostgreSQL: one row for each name.
//!
//! `postgres://USER:PASSWORD@HOST[:PORT][,HOST2]/DATABASE`. A free name is taken by one statement, and freed by one;
//! operations pending at the same moment share it. Whatever else there is to decide, the row is locked and the rule
//! of [`machine`](crate::machine) applied to it, and the transaction's commit tells the waiter that was granted
//! (`NOTIFY`). No connection is held while a lock is: a few serve all claims of a client, and one more listens.
//!
//! | fault | exclusion |
//! |---|---|
//! | client crash | kept: its claims end one ttl later at the latest |
//! | client pause | kept: the deadline is the client's own |
//! | server crash and restart | kept (`synchronous_commit` on) |
//! | failover to a standby | kept if replication is synchronous; else two leases may be valid at once, and only the token protects |
//! | step of the server's clock | forward: claims end early, and only the token protects |
//!
//! Memos are rows of a table of their own, on the disk when they are answered. A standby that no commit waits for may
//! lack the latest.
//!
//! Tokens are the server's time in microseconds, or one more than the last: they grow whatever the clock does, as
//! long as the tables live.

#[cfg(test)]
mod check;
mod connect;
mod desk;
mod doctor;
#[cfg(feature = "tls")]
mod encrypted;
mod errand;
mod error;
mod idle;
mod inbox;
mod lanes;
mod link;
mod look;
mod memos;
mod news;
mod plain;
mod preparing;
mod rows;
mod rule;
mod schema;
mod sheet;
mod sslmode;
mod statements;
mod sweep;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;
mod url;
mod work;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio_postgres::types::Type;

use self::desk::{Desk, claim_of, odd, waits};
use self::inbox::Inbox;
use self::lanes::Outcomes;
use self::link::Link;
use self::preparing::Preparing;
use self::rows::{cell, queue_of, unsigned};
use self::url::Settings;
use crate::backend::{
    Answer, Backend, Block, BreakRequest, Call, Capabilities, ClaimRequest, Claimed, Guarantees, Listener, Memo,
    MemoWrite, MemoWritten, MemosSurvive, ReleaseRequest, Released, RenewRequest, Renewed, Survival, WaitedFor,
    WaiterBreak, carried,
};
use crate::clock::{Clock, Moment};
use crate::doctor::Checkup;
use crate::error::Result;
use crate::machine::{NameView, Op, Outcome};
use crate::name::Name;
use crate::outcome;
use crate::owner::ClaimId;
use crate::token::Token;

/// One client of PostgreSQL.
pub struct PostgresBackend {
    desk: Arc<Desk>,
    inbox: Arc<Inbox>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresBackend").field("url", &self.desk.settings.shown).finish_non_exhaustive()
    }
}

impl PostgresBackend {
    /// Connects to what a URL names, and makes the tables if they are not there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a URL that is none,
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if no server answers or only a standby does,
    /// [`ErrorKind::Denied`](crate::ErrorKind::Denied) for wrong credentials or a right that is missing.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is claimed yet.
    pub async fn open(url: &str, clock: Arc<dyn Clock>) -> Result<Self> {
        let settings = Arc::new(Settings::parse(url)?);
        let opened = async {
            let preparing = Arc::new(Preparing::of(settings.target.hosts.len()));
            let first = Link::open(&settings, &preparing).await?;
            schema::settle(&first, &settings).await?;
            let desk = Desk::new(settings.clone(), preparing, first);
            let inbox = Inbox::open(&desk).await?;
            if !inbox.hears() {
                desk.must_allow_transactions().await?;
            }
            Ok((desk, Arc::new(inbox)))
        };
        let (desk, inbox) = opened.await.map_err(|error: crate::Error| error.in_store(settings.shown.clone()))?;
        Ok(Self { desk, inbox, clock })
    }

    /// Asks for renewals.
    fn apply_all(&self, ops: Vec<(Name, Op)>, fresh: bool) -> impl Future<Output = Result<Outcomes>> + Send + use<> {
        let claims: Vec<Option<ClaimId>> = ops.iter().map(|(_, op)| claim_of(op)).collect();
        let (asked, inbox) = (self.desk.ask(ops, fresh), self.inbox.clone());
        async move {
            let outcomes = asked.await?;
            for (claim, outcome) in claims.iter().zip(&outcomes) {
                // That one waits is no news: its answer may have come after its end.
                if let (Some(id), Ok(outcome)) = (claim, outcome)
                    && waits(outcome) == Some(false)
                {
                    inbox.waits_not(*id);
                }
            }
            Ok(outcomes)
        }
    }

    /// Asks for one operation, and keeps account of the claim if it waits.
    fn apply(&self, name: &Name, op: Op) -> impl Future<Output = Result<Outcome>> + Send + use<> {
        // Whether or not it is answered, nobody waits for it any longer. Of one that may go on, the answer tells.
        if let Op::Release { id, waiting_only: false, .. } | Op::NextBlock { id, .. } = &op {
            self.inbox.waits_not(*id);
        }
        let leaves = if let Op::Release { id, waiting_only: true, .. } = &op { Some(*id) } else { None };
        let joins = match &op {
            Op::Claim(request) | Op::NextBlock { next: request, .. } => {
                Some((request.id, name.clone(), request.inbox.clone()))
            }
            _ => None,
        };
        let (asked, inbox) = (self.desk.ask_one(name, op), self.inbox.clone());
        async move {
            let outcome = asked.await?;
            if let Some((id, name, address)) = joins {
                match waits(&outcome) {
                    Some(true) => inbox.waits(id, &name, &address),
                    Some(false) => inbox.waits_not(id),
                    None => {}
                }
            }
            if let Some(id) = leaves.filter(|_| waits(&outcome) == Some(false)) {
                inbox.waits_not(id);
            }
            Ok(outcome)
        }
    }
}

impl Backend for PostgresBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities { pushes: self.inbox.hears(), alerts: self.inbox.hears(), ..Capabilities::ALL }
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            store: "postgres",
            time: "the server's clock",
            client_crash: Survival::Kept,
            client_pause: Survival::Kept,
            store_crash: Survival::Kept,
            failover: Survival::FencedOnly,
            partition: Survival::Kept,
            clock_step: Survival::FencedOnly,
            tokens: "while the tables live; after their loss while the server's clock does not step back",
            // A standby has them for sure only if commits wait for it, which no client can rely on.
            memos: Some(MemosSurvive::new(true, false, true)),
        }
    }

    fn url(&self) -> &str {
        &self.desk.settings.shown
    }

    fn listen(&self, listener: Listener) {
        self.inbox.listen(listener);
    }

    fn claim(&self, name: &Name, mut request: ClaimRequest) -> Call<Answer<Claimed>> {
        let counted_from = self.clock.now();
        request.inbox = self.inbox.address();
        let applied = self.apply(name, Op::Claim(request));
        carried(&self.desk.runtime, async move { Ok(Answer { value: outcome::claimed(applied.await?), counted_from }) })
    }

    fn renew(&self, batch: Vec<RenewRequest>, fresh: bool) -> Call<Answer<Vec<Renewed>>> {
        let counted_from = self.clock.now();
        let op = |RenewRequest { name, id, ttl, number, .. }| (name, Op::Renew { id, ttl, number });
        let ops = batch.into_iter().map(op).collect();
        let applied = self.apply_all(ops, fresh);
        carried(&self.desk.runtime, async move {
            let mut outcomes = applied.await?;
            // Those that could not be asked for cost the others nothing.
            if outcomes.iter().all(Result::is_err)
                && let Some(Err(error)) = outcomes.pop()
            {
                return Err(error);
            }
            let unknown = |error: crate::Error| Renewed::Unknown(error.to_string().into());
            let value = outcomes.into_iter().map(|outcome| outcome.map_or_else(unknown, outcome::renewed)).collect();
            Ok(Answer { value, counted_from })
        })
    }

    fn release(&self, name: &Name, request: ReleaseRequest) -> Call<Released> {
        let applied = self.apply(name, request.into());
        carried(&self.desk.runtime, async move { applied.await.map(outcome::released) })
    }

    fn next_block(&self, name: &Name, id: ClaimId, block_end: Token, mut next: ClaimRequest) -> Call<Answer<Block>> {
        let counted_from = self.clock.now();
        next.inbox = self.inbox.address();
        let applied = self.apply(name, Op::NextBlock { id, block_end, next });
        carried(&self.desk.runtime, async move { Ok(Answer { value: outcome::block(applied.await?), counted_from }) })
    }

    fn break_holders(&self, name: &Name, request: BreakRequest) -> Call<usize> {
        let applied = self.apply(name, request.into());
        carried(&self.desk.runtime, async move { Ok(outcome::evicted(&applied.await?)) })
    }

    fn break_waiter(&self, name: &Name, request: WaiterBreak) -> Call<bool> {
        let applied = self.apply(name, request.into());
        carried(&self.desk.runtime, async move { Ok(outcome::waiter_ended(&applied.await?)) })
    }

    fn inspect(&self, name: &Name) -> Call<NameView> {
        let (desk, name) = (self.desk.clone(), name.clone());
        carried(&self.desk.runtime, async move {
            let rows = desk.look().await?.query(&desk.statements.inspect, &[(&name.as_str(), Type::TEXT)]).await?;
            match rows.first() {
                Some(row) => Ok(NameView::of(name, &queue_of(row)?, now_of(row)?)),
                None => Ok(NameView::free(name)),
            }
        })
    }

    fn write_memo(&self, name: &Name, write: MemoWrite) -> Call<MemoWritten> {
        let (desk, name) = (self.desk.clone(), name.clone());
        carried(&self.desk.runtime, async move { desk.write_memo(&name, &write).await })
    }

    fn memo(&self, name: &Name) -> Call<Option<Memo>> {
        let (desk, name) = (self.desk.clone(), name.clone());
        carried(&self.desk.runtime, async move { desk.memo(&name).await })
    }

    fn time(&self) -> Call<SystemTime> {
        let desk = self.desk.clone();
        carried(&self.desk.runtime, async move {
            let rows = desk.look().await?.query(&desk.statements.time, &[]).await?;
            let now = rows.first().map(now_of).transpose()?.ok_or_else(odd)?;
            Ok(SystemTime::UNIX_EPOCH + Duration::from_micros(now.as_micros()))
        })
    }

    fn waited_for(&self, after: Option<Name>, limit: usize) -> Call<WaitedFor> {
        let desk = self.desk.clone();
        carried(&self.desk.runtime, async move {
            let after = after.map_or_else(String::new, |name| name.as_str().to_owned());
            let page = i64::try_from(limit).unwrap_or(i64::MAX);
            let params: [link::Param<'_>; 2] = [(&after, Type::TEXT), (&page, Type::INT8)];
            let rows = desk.look().await?.query(&desk.statements.waited_for, &params).await?;
            let mut found = WaitedFor::default();
            for row in &rows {
                let name: String = cell(row, "name")?;
                found.after = Some(Name::new(&name)?).filter(|_| rows.len() >= limit);
                match view_of(&name, row) {
                    // All who waited may have died.
                    Ok(view) if view.waiters.is_empty() => {}
                    Ok(view) => found.views.push(view),
                    Err(error) => tracing::warn!(%error, "left out of a list"),
                }
            }
            Ok(found)
        })
    }

    fn examine(&self) -> Call<Checkup> {
        let (desk, inbox, clock) = (self.desk.clone(), self.inbox.clone(), self.clock.clone());
        carried(&self.desk.runtime, async move { doctor::examine(&desk, inbox.hears(), &*clock).await })
    }

    fn scan(&self, prefix: &str, after: Option<Name>, limit: usize) -> Call<Vec<NameView>> {
        let (desk, prefix) = (self.desk.clone(), prefix.to_owned());
        carried(&self.desk.runtime, async move {
            let mut after = after.map_or_else(String::new, |name| name.as_str().to_owned());
            let page = i64::try_from(limit).unwrap_or(i64::MAX);
            let mut look = desk.look().await?;
            let mut views = Vec::new();
            loop {
                let params: [link::Param<'_>; 3] = [(&prefix, Type::TEXT), (&after, Type::TEXT), (&page, Type::INT8)];
                let rows = look.query(&desk.statements.scan, &params).await?;
                for row in &rows {
                    after = cell(row, "name")?;
                    let view = match view_of(&after, row) {
                        Ok(view) => view,
                        // One row that nobody can read is no reason to show none.
                        Err(error) => {
                            tracing::warn!(%error, "left out of a list");
                            continue;
                        }
                    };
                    // All of its claims may have died.
                    if !view.is_free() && views.len() < limit {
                        views.push(view);
                    }
                }
                if views.len() >= limit || rows.len() < limit {
                    break;
                }
            }
            Ok(views)
        })
    }
}

fn view_of(name: &str, row: &tokio_postgres::Row) -> Result<NameView> {
    Ok(NameView::of(Name::new(name)?, &queue_of(row)?, now_of(row)?))
}

fn now_of(row: &tokio_postgres::Row) -> Result<Moment> {
    Ok(Moment(unsigned(cell(row, "now")?)))
}
