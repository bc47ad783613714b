//! Claims that change their node: into another claim of their owner, or into another session. All at once or not at all.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use zookeeper_client::{CreateMode, Error as Refused, MultiWriter};

use super::desk::Desk;
use super::names::{Node, digits, prefix};
use super::record::Record;
use super::session::{Answered, Kind, Session};
use super::table::{Entry, Placed};
use crate::name::Name;
use crate::owner::ClaimId;

/// How often it is tried to prove that a session lives long enough: what is proven is of the past when the answer comes late.
const PROOFS_MAX: usize = 4;

/// What every lease ends sooner than the store has it.
fn margin(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

impl Desk {
    /// Puts a claim within one of its owner that holds: a node with that one's number. With `own`, the node it had goes. None
    /// if one of those nodes is not there any more.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: the claim is found again by its id.
    pub(super) async fn nest(
        &self,
        session: &Session,
        name: &Name,
        (outer, token): (&Node, u64),
        own: Option<&Placed>,
        mut record: Record,
    ) -> Answered<Option<Placed>> {
        let parent = self.paths.of(name);
        record.token = Some(token);
        record.number = own.map(|own| own.number);
        let node = format!("{}{}", stem(&record), digits(outer.number));
        let path = format!("{parent}/{node}");
        let mut multi = session.client.new_multi_writer();
        multi.add_check_version(&format!("{parent}/{}", outer.name), -1)?;
        if let Some(own) = own {
            multi.add_delete(&format!("{parent}/{}", own.node), Some(own.version))?;
        }
        multi.add_create(&path, &record.bytes(), &session.options(CreateMode::Ephemeral))?;
        let moving = self.table.moving(record.id);
        if !self.commit(session, multi).await? {
            return Ok(None);
        }
        // Older servers do not tell of what they made within others.
        let made = session.ask(Kind::Read, || session.client.check_stat(&path)).await?;
        let Some(made) = made else { return Ok(None) };
        let number = record.number.unwrap_or_else(|| u64::try_from(made.czxid).unwrap_or(0));
        let placed = Placed { node, number, token, version: 0 };
        self.table.change(record.id, |entry| entry.placed = Some(placed.clone()));
        drop(moving);
        Ok(Some(placed))
    }

    /// Makes the node of a claim anew in this session, in its place. None if the node is not there any more, or says something
    /// else than when it was looked into: then another attempt has taken the claim over, which must not be undone.
    ///
    /// Somebody may rely on the claim for `trusted` from its latest renewal on, in the session it is in now: the new one has to
    /// be known to live as long.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: the claim is found again by its id.
    pub(super) async fn transfer(
        &self,
        session: &Arc<Session>,
        name: &Name,
        (old, version): (&Node, i32),
        record: Record,
        trusted: Duration,
    ) -> Answered<Option<Placed>> {
        self.prove(session, trusted).await?;
        let parent = self.paths.of(name);
        let node = format!("{}{}", stem(&record), digits(old.number));
        let mut multi = session.client.new_multi_writer();
        multi.add_delete(&format!("{parent}/{}", old.name), Some(version))?;
        let options = session.options(CreateMode::Ephemeral);
        multi.add_create(&format!("{parent}/{node}"), &record.bytes(), &options)?;
        let moving = self.table.moving(record.id);
        if !self.commit(session, multi).await? {
            return Ok(None);
        }
        let (number, token) = (record.number.unwrap_or(0), record.token.unwrap_or(0));
        let placed = Placed { node, number, token, version: 0 };
        let expires = self.clock.now() + record.ttl();
        self.table.change(record.id, |entry| {
            entry.placed = Some(placed.clone());
            (entry.session, entry.ttl, entry.expires) = (session.clone(), record.ttl(), expires);
        });
        drop(moving);
        Ok(Some(placed))
    }

    /// Moves a claim to the session of a longer ttl. None if it has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: the claim is found again by its id.
    pub(super) async fn lengthen(
        self: &Arc<Self>,
        id: ClaimId,
        entry: &Entry,
        ttl: Duration,
    ) -> Answered<Option<Entry>> {
        let Some(placed) = &entry.placed else { return Ok(None) };
        // Out of range, or no session to be had: it keeps the ttl it has, and says so.
        let Ok(session) = self.session(ttl).await else { return Ok(Some(entry.clone())) };
        let Some(node) = Node::parse(&placed.node) else { return Ok(None) };
        let mut record = Record::of(&entry.request, ttl);
        (record.token, record.number) = (Some(placed.token), Some(placed.number));
        let moved = self.transfer(&session, &entry.name, (&node, placed.version), record, entry.ttl).await?;
        Ok(moved.and_then(|_| self.table.get(id)))
    }

    /// Makes sure that a session lives as long as a claim of this ttl may be relied on that is renewed elsewhere until now. An
    /// error if that cannot be known, or not soon: others may be asked for together with it.
    async fn prove(&self, session: &Session, ttl: Duration) -> Answered<()> {
        let patience = session.tick() * 4 + ttl / 3;
        timeout(patience, self.prove_patiently(session, ttl)).await.unwrap_or(Err(Refused::Timeout))
    }

    async fn prove_patiently(&self, session: &Session, ttl: Duration) -> Answered<()> {
        for _ in 0..PROOFS_MAX {
            // Without the tick, so that what is proven holds as well a tick later, which proving takes.
            let until = self.clock.now() + ttl;
            if !session.prove(until).await? {
                return Err(Refused::Timeout);
            }
            // It may have been renewed meanwhile. Whoever did that counts from a tick before, and leaves a margin.
            if session.counted() + session.timeout + session.tick() + margin(ttl) >= self.clock.now() + ttl {
                return Ok(());
            }
        }
        Err(Refused::Timeout)
    }

    /// Whether it was done; not, if one of the nodes was not there or not as expected.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown.
    pub(super) async fn commit(&self, session: &Session, mut multi: MultiWriter<'_>) -> Answered<bool> {
        session.made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let done = session.ask(Kind::Write, || {
            let committed = multi.commit();
            async move { committed.await.map_err(Refused::from) }
        });
        match done.await {
            Ok(_) => Ok(true),
            Err(Refused::NoNode | Refused::NodeExists | Refused::BadVersion) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// What a new node of a claim is called, up to its number.
pub(super) fn stem(record: &Record) -> String {
    prefix(record.id, rand::random(), &record.owner, record.shape)
}
