//! Claims that change their node: into another claim of their owner, or into another session. All at once or not at
//! all.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use zookeeper_client::{CreateMode, Error as Refused, MultiWriter};

use super::desk::{Desk, pause};
use super::names::{Node, digits, prefix};
use super::pulse::Trusted;
use super::record::Record;
use super::session::{Answered, Kind, Session};
use super::table::{Entry, Placed};
use crate::error::Result;
use crate::name::Name;
use crate::owner::ClaimId;

/// How often it is tried to prove that a session lives long enough: what is proven is of the past when the answer
/// comes late.
const PROOFS_MAX: usize = 4;

impl Desk {
    /// Puts a claim within one of its owner that holds: a node with that one's number. With `own`, the node it had
    /// goes. None if one of those nodes is not there any more.
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

    /// Makes the node of a claim anew in this session, in its place. None if the node is not there any more, or says
    /// something else than when it was looked into: then another attempt has taken the claim over, which must not be
    /// undone.
    ///
    /// Somebody may rely on the claim in the session it is in now: the new one has to be known to live as long.
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
        trusted: Trusted,
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
            (entry.session, entry.ttl) = (session.clone(), record.ttl());
            entry.place(placed.clone(), expires);
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
        let trusted = Trusted { seen: self.clock.now(), ttl: entry.ttl };
        // Out of range, or no session to be had: it keeps the ttl it has, and says so.
        let Ok(session) = self.session_outliving(id, ttl, trusted).await else { return Ok(Some(entry.clone())) };
        let Some(node) = Node::parse(&placed.node) else { return Ok(None) };
        let mut record = Record::of(&entry.request, ttl);
        (record.token, record.number) = (Some(placed.token), Some(placed.number));
        let moved = self.transfer(&session, &entry.name, (&node, placed.version), record, trusted).await?;
        Ok(moved.and_then(|_| self.table.get(id)))
    }

    /// The session for claims of this ttl that another one is to be moved into. One that is not known to live long
    /// enough, and that no other claim lives by, makes room for a new one: of that it is known at once.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a session that is not finished ends by itself.
    pub(super) async fn session_outliving(
        self: &Arc<Self>,
        id: ClaimId,
        ttl: Duration,
        trusted: Trusted,
    ) -> Result<Arc<Session>> {
        let before = self.session(ttl).await?;
        let suits = |session: &Session| self.outlives(session, trusted) || self.table.has_others(session.id, id);
        let session = self.session_that(ttl, suits).await?;
        if session.id != before.id {
            self.table.let_go(&before, Some(id), &self.closings);
        }
        Ok(session)
    }

    /// Whether a session is known to live as long as somebody may rely on this claim.
    fn outlives(&self, session: &Session, trusted: Trusted) -> bool {
        session.counted() + session.timeout >= trusted.until(self.clock.now(), session.tick())
    }

    /// Makes sure that a session [outlives](Self::outlives) a claim. An error if that cannot be known, or not soon:
    /// others may be asked for together with it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at worst the session lives longer.
    pub(super) async fn prove(&self, session: &Session, trusted: Trusted) -> Answered<()> {
        if self.outlives(session, trusted) {
            return Ok(());
        }
        let patience = session.tick() * 4 + trusted.ttl / 3;
        timeout(patience, self.prove_patiently(session, trusted)).await.unwrap_or(Err(Refused::Timeout))
    }

    async fn prove_patiently(&self, session: &Session, trusted: Trusted) -> Answered<()> {
        // What was answered a tick ago may be enough.
        session.beat().await?;
        if self.outlives(session, trusted) {
            return Ok(());
        }
        for _ in 0..PROOFS_MAX {
            // What is answered now is known to the leader a tick later.
            session.ping().await;
            pause(session.tick()).await;
            session.beat().await?;
            if self.outlives(session, trusted) {
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
