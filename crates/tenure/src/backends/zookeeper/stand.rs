//! How a claim of this client stands, by a look at its name; and what became of one that is not there.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zookeeper_client::Error as Refused;

use super::desk::Desk;
use super::look::{Ahead, Fresh, Judged};
use super::names::Node;
use super::record::Record;
use super::session::{Answered, Kind, Session};
use super::table::{Entry, Placed};
use crate::backend::Event;
use crate::error::Loss;
use crate::machine::{Grant, Standing};
use crate::name::Name;
use crate::owner::ClaimId;
use crate::token::Token;

/// How often a look is repeated because the name changed meanwhile.
const LOOKS_MAX: usize = 8;

/// What is left of a claim that was broken.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) number: u64,
    pub(super) by: Arc<str>,
    pub(super) reason: Arc<str>,
}

/// Where a claim is that is not at its node.
#[derive(Debug)]
pub(super) enum Missing {
    /// Nowhere.
    Gone,
    /// It was broken.
    Broken(Note),
    /// Somebody else renews it, in another session.
    Moved,
}

impl Desk {
    /// How a claim stands, and whom it waits for. None if its node is not there.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn stand(&self, id: ClaimId, entry: &Entry) -> Answered<Option<(Standing, Ahead)>> {
        let Some(mut placed) = entry.placed.clone() else { return Ok(None) };
        let (session, name) = (&entry.session, &entry.name);
        let standing = |number, state| Standing { number, ttl: entry.ttl, state };
        if let Some(grant) = entry.grant {
            // Once it holds, it holds as long as it is there.
            let path = format!("{}/{}", self.paths.of(name), placed.node);
            let there = session.ask(Kind::Read, || session.client.check_stat(&path)).await?;
            let own = there.is_some_and(|stat| stat.ephemeral_owner == session.id);
            return Ok(own.then(|| (standing(placed.number, Ok(grant)), Ahead::Nobody)));
        }
        for _ in 0..LOOKS_MAX {
            let listing = self.listing(session, name, Fresh::No).await?;
            let Some(place) = listing.place_of(&placed.node) else { return Ok(None) };
            let number = listing.nodes.get(place).map(|own| own.number);
            let judged = match self.judge(session, name, (&listing, place), &entry.request, false).await? {
                Judged::Within(outer, token) if Some(outer.number) != number => {
                    // It came before its owner held, and would lose its turn with the claim it stands within.
                    let record = Record::of(&entry.request, entry.ttl);
                    let moved = self.nest(session, name, (&outer, token), Some(&placed), record).await?;
                    let Some(moved) = moved else { continue };
                    placed = moved;
                    Judged::Holds
                }
                judged => judged,
            };
            return Ok(Some(match judged {
                Judged::Changed | Judged::Refused(_) => continue,
                Judged::Holds | Judged::Within(..) => {
                    (standing(placed.number, Ok(self.grant(id, &placed))), Ahead::Nobody)
                }
                Judged::Waits(place, ahead) => (standing(placed.number, Err(place)), ahead),
            }));
        }
        Err(Refused::Timeout)
    }

    /// What a claim is given, the same each time it is asked for.
    pub(super) fn grant(&self, id: ClaimId, placed: &Placed) -> Grant {
        let token = Token(placed.token);
        let grant = Grant { token, block_end: token, at: self.wall() };
        let kept = self.table.change(id, |entry| *entry.grant.get_or_insert(grant));
        kept.unwrap_or(grant)
    }

    /// What became of a claim whose node is not there.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn missing(
        &self,
        session: &Session,
        name: &Name,
        id: ClaimId,
        number: Option<u64>,
    ) -> Answered<Missing> {
        if let Some(note) = self.note(session, id).await?
            && number.is_none_or(|number| number == note.number)
        {
            return Ok(Missing::Broken(note));
        }
        let found = self.find(session, name, id, Fresh::Yes).await?;
        let moved = found.iter().any(|(_, known)| !self.is_of_the_past(known.session));
        Ok(if moved { Missing::Moved } else { Missing::Gone })
    }

    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn note(&self, session: &Session, id: ClaimId) -> Answered<Option<Note>> {
        let path = self.paths.note(id);
        match session.ask(Kind::Read, || session.client.get_data(&path)).await {
            Ok((data, _)) => Ok(serde_json::from_slice(&data).ok()),
            Err(Refused::NoNode) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The nodes of a claim, whatever session they belong to.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn find(
        &self,
        session: &Session,
        name: &Name,
        id: ClaimId,
        fresh: Fresh,
    ) -> Answered<Vec<(Node, Arc<super::record::Known>)>> {
        let listing = self.listing(session, name, fresh).await?;
        let nodes: Vec<Node> = listing.nodes.iter().filter(|node| node.id == Some(id)).cloned().collect();
        let mut found = self.look_into_all(session, name, &nodes).await?;
        found.retain(|(_, known)| known.is_of(id));
        Ok(found)
    }

    /// A claim has ended that this client did not end: whoever has it is told.
    pub(super) fn ended(&self, id: ClaimId, placed: &Placed, missing: &Missing) {
        let Some(entry) = self.table.remove(id, Some(placed)) else { return };
        if entry.ending {
            return;
        }
        let loss = match missing {
            Missing::Gone => Loss::Gone,
            Missing::Broken(note) => Loss::Broken { by: note.by.to_string(), reason: note.reason.to_string() },
            Missing::Moved => return,
        };
        self.tell(Event::Ended { id, number: placed.number, loss });
    }
}
