//! Claims that change their node: into another claim of their owner, or into another session. All at once or not at all.

use std::sync::Arc;
use std::time::Duration;

use zookeeper_client::{CreateMode, Error as Refused, MultiWriter};

use super::desk::Desk;
use super::names::{Node, digits, prefix};
use super::record::Record;
use super::session::{Answered, Kind, Session};
use super::table::{Entry, Placed};
use crate::clock::Moment;
use crate::name::Name;
use crate::owner::ClaimId;

impl Desk {
    /// Puts a claim within one of its owner that holds: a node with that one's number. With `own`, the node it had goes. None
    /// if one of those nodes is not there any more.
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
    /// Somebody may rely on the claim until `trusted`, counted in the session it is in now: the new one has to be known to live
    /// as long.
    pub(super) async fn transfer(
        &self,
        session: &Arc<Session>,
        name: &Name,
        (old, version): (&Node, i32),
        record: Record,
        trusted: Moment,
    ) -> Answered<Option<Placed>> {
        if !session.prove(trusted).await? {
            return Err(Refused::Timeout);
        }
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
        let trusted = entry.session.counted().max(self.clock.now() - entry.session.tick()) + entry.ttl;
        let moved = self.transfer(&session, &entry.name, (&node, placed.version), record, trusted).await?;
        Ok(moved.and_then(|_| self.table.get(id)))
    }

    /// Until when another process may rely on a claim of this ttl: it counts from a tick before its latest write at the latest.
    pub(super) fn trusted_elsewhere(&self, session: &Session, ttl: Duration) -> Moment {
        self.clock.now() - session.tick() + ttl
    }

    /// Whether it was done; not, if one of the nodes was not there or not as expected.
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
