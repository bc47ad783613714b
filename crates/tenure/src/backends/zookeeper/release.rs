//! Ending claims: one's own, or other holders'.

use std::sync::Arc;

use zookeeper_client::{CreateMode, Error as Refused};

use super::desk::Desk;
use super::error::{of_request, restless};
use super::look::Fresh;
use super::names::{Node, parent};
use super::record::{Known, Record, claim_of};
use super::session::{Kind, Session};
use super::stand::Note;
use super::table::{Entry, Placed};
use crate::backend::{BreakRequest, Released};
use crate::error::Result;
use crate::machine::{Claim, Queue};
use crate::name::Name;
use crate::owner::ClaimId;

/// How often a break looks again because the name changed meanwhile.
const TRIES_MAX: usize = 8;

/// Ends a claim; with `number`, only if the store gave it that.
///
/// # Cancel safety
///
/// Cancelling leaves the outcome unknown: repeat it, or leave the claim to its ttl.
pub(super) async fn release(desk: Arc<Desk>, name: Name, id: ClaimId, number: Option<u64>) -> Result<Released> {
    if let Some(entry) = desk.table.get(id) {
        let turn = entry.gate.lock().await;
        if entry.session.has_ended() {
            // Whatever was entered after the claims of that session were removed goes now.
            desk.session_ended(&entry.session);
        }
        // Whoever had the turn before may have changed it.
        if let Some(entry) = desk.table.get(id).filter(|entry| !entry.session.has_ended()) {
            let released = match &entry.placed {
                Some(placed) => desk.release_placed(id, &entry, placed, number).await,
                None => desk.release_found(&entry.session, &name, id, number).await,
            };
            if released.is_ok() && entry.placed.is_none() && number.is_none() {
                desk.table.remove(id, None);
            }
            drop(turn);
            return released;
        }
    }
    let session = desk.usual().await?;
    desk.release_found(&session, &name, id, number).await
}

impl Desk {
    async fn release_placed(
        &self,
        id: ClaimId,
        entry: &Entry,
        placed: &Placed,
        number: Option<u64>,
    ) -> Result<Released> {
        if number.is_some_and(|number| number != placed.number) {
            return Ok(Released::NotFound);
        }
        let session = &entry.session;
        // That its node goes is no news then.
        self.table.change(id, |entry| entry.ending = true);
        let path = format!("{}/{}", self.paths.of(&entry.name), placed.node);
        let deleted = session.ask(Kind::Write, || session.client.delete(&path, None)).await;
        match deleted {
            Ok(()) => {
                self.table.remove(id, Some(placed));
                Ok(Released::Yes)
            }
            Err(Refused::NoNode) => {
                // Ended by somebody, or it is in another session by now.
                let released = self.release_found(session, &entry.name, id, Some(placed.number)).await?;
                self.table.remove(id, Some(placed));
                Ok(released)
            }
            Err(error) => Err(of_request(error)),
        }
    }

    /// Ends a claim wherever it is.
    async fn release_found(
        &self,
        session: &Session,
        name: &Name,
        id: ClaimId,
        number: Option<u64>,
    ) -> Result<Released> {
        let found = self.find(session, name, id, Fresh::Yes).await.map_err(of_request)?;
        let mut released = Released::NotFound;
        // What was deleted before stays so, whatever fails later.
        let mut deleted = false;
        for (node, known) in found.iter().filter(|(_, known)| number.is_none_or(|number| known.number() == number)) {
            let path = format!("{}/{}", self.paths.of(name), node.name);
            // One of a session that is over does not count: it goes by itself.
            let counts = !self.is_of_the_past(known.session);
            // With a number it is one attempt's claim, and not that of one that takes it over meanwhile.
            let version = number.map(|_| known.version);
            match session.ask(Kind::Write, || session.client.delete(&path, version)).await {
                Ok(()) => {
                    deleted = true;
                    if counts {
                        released = Released::Yes;
                    }
                }
                Err(Refused::NoNode | Refused::BadVersion) => {}
                Err(error) => return Err(of_request(error).unknown_if(deleted)),
            }
        }
        if released == Released::NotFound {
            return self.not_there(session, id, number).await.map_err(|error| error.unknown_if(deleted));
        }
        Ok(released)
    }

    /// What became of a claim that has no node.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn not_there(&self, session: &Session, id: ClaimId, number: Option<u64>) -> Result<Released> {
        let note = self.note(session, id).await.map_err(of_request)?;
        let note = note.filter(|note| number.is_none_or(|number| number == note.number));
        Ok(note.map_or(Released::NotFound, |note| Released::Broken { by: note.by, reason: note.reason }))
    }
}

/// Ends the holders' claims, or those that are meant, and leaves a note for each; how many.
///
/// # Cancel safety
///
/// Cancelling leaves the outcome unknown: look again.
pub(super) async fn break_holders(desk: Arc<Desk>, name: Name, request: BreakRequest) -> Result<usize> {
    let BreakRequest { by, reason, .. } = &request;
    let session = desk.usual().await?;
    let mut ended = 0;
    let mut meant: Option<Vec<Meant>> = None;
    for _ in 0..TRIES_MAX {
        // What was ended before stays so, whatever fails later.
        let nodes = desk.all_nodes(&session, &name).await.map_err(|error| of_request(error).unknown_if(ended > 0))?;
        let holders = holders(&desk, &nodes, &request);
        // Those who hold now are meant, not those who hold because others have ended.
        let meant = meant.get_or_insert_with(|| holders.iter().map(|(node, known)| Meant::of(node, known)).collect());
        let left: Vec<_> = nodes.iter().filter(|(node, known)| meant.contains(&Meant::of(node, known))).collect();
        if left.is_empty() {
            return Ok(ended);
        }
        for (node, known) in left {
            let note = Note { number: known.number(), by: by.clone(), reason: reason.clone() };
            let broken = desk.break_one(&session, &name, node, known, note).await;
            if broken.map_err(|error| error.unknown_if(ended > 0))? {
                ended += 1;
            }
        }
    }
    Err(restless())
}

/// Whom a break means, also where it has another node meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meant {
    /// The claim of this id that the store gave this number: it keeps both wherever it goes.
    Claim(ClaimId, u64),
    /// The node of another library.
    Node(String),
}

impl Meant {
    pub(super) fn of(node: &Node, known: &Known) -> Self {
        match &known.record {
            Some(record) => Self::Claim(record.id, known.number()),
            None => Self::Node(node.name.clone()),
        }
    }
}

fn holders<'a>(desk: &Desk, nodes: &'a [(Node, Arc<Known>)], meant: &BreakRequest) -> Vec<&'a (Node, Arc<Known>)> {
    let now = desk.wall();
    let claims: Vec<_> =
        nodes.iter().map(|(node, known)| claim_of(node, Some(known), now, desk.limits().max)).collect();
    let ids: Vec<ClaimId> = claims.iter().map(|(claim, _)| claim.id).collect();
    let queue = Queue::ordered(claims);
    let is_meant = |held: &&Claim| {
        meant.owner.as_ref().is_none_or(|owner| *owner == held.owner)
            && meant.up_to.is_none_or(|token| held.grant.is_some_and(|grant| grant.token <= token))
    };
    let held = |id: &ClaimId| queue.holders().filter(is_meant).any(|held| held.id == *id);
    nodes.iter().zip(&ids).filter(|(_, id)| held(id)).map(|(node, _)| node).collect()
}

impl Desk {
    /// Ends one claim and leaves a note, both at once. False if it has ended by itself.
    async fn break_one(
        self: &Arc<Self>,
        session: &Arc<Session>,
        name: &Name,
        node: &Node,
        known: &Known,
        note: Note,
    ) -> Result<bool> {
        let path = format!("{}/{}", self.paths.of(name), node.name);
        let Some(record) = &known.record else {
            // Another library's: nobody there reads a note.
            let deleted = session.ask(Kind::Write, || session.client.delete(&path, None)).await;
            return match deleted {
                Ok(()) => Ok(true),
                Err(Refused::NoNode) => Ok(false),
                Err(error) => Err(of_request(error)),
            };
        };
        let (writer, note_path) = self.begin_note(session, record).await;
        let data = serde_json::to_vec(&note).unwrap_or_default();
        for _ in 0..TRIES_MAX {
            let mut multi = writer.client.new_multi_writer();
            let added = multi
                .add_delete(&path, Some(known.version))
                .and_then(|()| multi.add_create(&note_path, &data, &writer.options(CreateMode::Ephemeral)));
            added.map_err(of_request)?;
            if self.commit(&writer, multi).await.map_err(of_request)? {
                return Ok(true);
            }
            let there = writer.ask(Kind::Read, || writer.client.check_stat(&path)).await.map_err(of_request)?;
            if there.is_none_or(|stat| stat.version != known.version) {
                // It has ended, or another attempt has taken it over since it was looked into: whoever breaks looks
                // again.
                self.forget(&path);
                self.drop_note(&note_path, writer.id);
                return Ok(false);
            }
            self.make_room_for_note(&writer, &note_path).await?;
        }
        Err(restless())
    }

    /// The session that is to write a note for a claim, and where. Within a ttl the claim's client has asked, or is
    /// dead: the note goes with a session that lives so long, also should its writer be gone at once.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is written yet.
    pub(super) async fn begin_note(
        self: &Arc<Self>,
        session: &Arc<Session>,
        record: &Record,
    ) -> (Arc<Session>, String) {
        let writer = match self.session(record.ttl()).await {
            Ok(writer) => writer,
            Err(_) => session.clone(),
        };
        let note_path = self.paths.note(record.id);
        // Before it is there, for it may be there although no answer says so.
        self.keep_note(note_path.clone(), writer.clone(), self.clock.now() + record.ttl());
        (writer, note_path)
    }

    /// A note of an earlier claim with this id is in the way, or the notes have no place yet.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: repeat it.
    pub(super) async fn make_room_for_note(&self, writer: &Session, note_path: &str) -> Result<()> {
        let removed = writer.ask(Kind::Write, || writer.client.delete(note_path, None)).await;
        if let Err(Refused::NoNode) = removed {
            writer.make_container(parent(note_path)).await.map_err(of_request)?;
        }
        Ok(())
    }
}
