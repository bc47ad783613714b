//! Ending a claim only if it still waits.
//!
//! Who holds follows from the order of the nodes, so no node says that a claim waits. But a few others do, as long as
//! they are there ([`Queue::blockers`]): the transaction that ends the claim checks them.

use std::sync::Arc;

use zookeeper_client::CreateMode;

use super::desk::Desk;
use super::error::{of_request, restless};
use super::look::Fresh;
use super::names::{Node, tag_of};
use super::record::{Known, claim_of};
use super::session::{Answered, Session};
use super::stand::Note;
use crate::backend::{Released, WaiterBreak};
use crate::error::Result;
use crate::machine::Queue;
use crate::name::Name;
use crate::owner::ClaimId;

/// How often the name is looked at again because it changed meanwhile.
const TRIES_MAX: usize = 16;

/// How a claim stands, for who would end it while it waits.
enum Seen {
    Holds,
    /// It waits as long as these nodes are there.
    Waits(Vec<String>),
    /// What was seen is not so any more.
    Changed,
}

/// Ends a claim that waits, if it has this number; one that holds stays.
///
/// # Cancel safety
///
/// Cancelling leaves the outcome unknown: repeat it, or leave the claim to its ttl.
pub(super) async fn release_unless_held(
    desk: Arc<Desk>,
    name: Name,
    id: ClaimId,
    number: Option<u64>,
) -> Result<Released> {
    let entry = desk.table.get(id);
    // Not while it goes to another node.
    let _turn = match &entry {
        Some(entry) => Some(entry.gate.lock().await),
        None => None,
    };
    let session = match desk.table.get(id).filter(|entry| !entry.session.has_ended()) {
        Some(entry) => entry.session,
        None => desk.usual().await?,
    };
    for _ in 0..TRIES_MAX {
        let found = desk.find(&session, &name, id, Fresh::Yes).await.map_err(of_request)?;
        // One of a session that is over does not count: it goes by itself.
        let is_meant =
            |known: &Known| number.is_none_or(|number| known.number() == number) && !desk.is_of_the_past(known.session);
        let Some((own, known)) = found.into_iter().find(|(_, known)| is_meant(known)) else {
            return desk.not_there(&session, id, number).await;
        };
        match desk.stands_behind(&session, &name, &own, &known).await.map_err(of_request)? {
            Seen::Holds => return Ok(Released::Holds),
            Seen::Changed => {}
            Seen::Waits(blockers) => {
                let ended = desk.end_behind(&session, &name, (&own, &known), &blockers, None).await;
                if ended.map_err(of_request)? {
                    let placed = desk.table.get(id).and_then(|entry| entry.placed);
                    if let Some(placed) = placed.filter(|placed| placed.node == own.name) {
                        desk.table.remove(id, Some(&placed));
                    }
                    return Ok(Released::Yes);
                }
            }
        }
    }
    Err(restless())
}

/// Ends a claim that waits, and leaves a note for its client; false if it holds, or is not there.
///
/// # Cancel safety
///
/// Cancelling leaves the outcome unknown: repeat it.
pub(super) async fn break_waiter(desk: Arc<Desk>, name: Name, request: WaiterBreak) -> Result<bool> {
    let WaiterBreak { id, number, by, reason } = request;
    let session = desk.usual().await?;
    let note = serde_json::to_vec(&Note { number, by, reason }).unwrap_or_default();
    for _ in 0..TRIES_MAX {
        let found = desk.find(&session, &name, id, Fresh::Yes).await.map_err(of_request)?;
        let is_meant = |known: &Known| known.number() == number && !desk.is_of_the_past(known.session);
        let meant = found.iter().find(|(_, known)| is_meant(known));
        let Some((own, known, record)) = meant.and_then(|(own, known)| Some((own, known, known.record.as_ref()?)))
        else {
            return Ok(false);
        };
        let blockers = match desk.stands_behind(&session, &name, own, known).await.map_err(of_request)? {
            Seen::Holds => return Ok(false),
            Seen::Changed => continue,
            Seen::Waits(blockers) => blockers,
        };
        let (writer, note_path) = desk.begin_note(&session, record).await;
        let ended =
            desk.end_behind(&writer, &name, (own, known), &blockers, Some((note_path.as_str(), note.as_slice()))).await;
        if ended.map_err(of_request)? {
            return Ok(true);
        }
        // Whatever has changed is looked at again.
        desk.drop_note(&note_path, writer.id);
        desk.make_room_for_note(&writer, &note_path).await?;
    }
    Err(restless())
}

impl Desk {
    /// How the claim of this node stands.
    async fn stands_behind(&self, session: &Session, name: &Name, own: &Node, known: &Known) -> Answered<Seen> {
        let Some(record) = &known.record else { return Ok(Seen::Changed) };
        let listing = self.listing(session, name, Fresh::Yes).await?;
        let place = listing.place_of(&own.name);
        let Some(nodes) = place.and_then(|place| listing.nodes.get(..=place)) else { return Ok(Seen::Changed) };
        let Some((nodes, seen)) = self.claims_among(session, name, nodes, tag_of(&record.owner)).await? else {
            return Ok(Seen::Changed);
        };
        let now = self.wall();
        // Told apart by their places: a claim may have two nodes.
        let claims = nodes.iter().zip(0..).map(|(node, place)| {
            let known = seen.get(&node.name).map(|known| &**known);
            let (mut claim, grant) = claim_of(node, known, now, self.limits().max);
            (claim.id, claim.number) = (ClaimId(place), place);
            (claim, grant)
        });
        let queue = Queue::ordered(claims);
        let own = nodes.iter().position(|node| node.name == own.name).and_then(|own| u64::try_from(own).ok());
        let Some(claim) = own.and_then(|own| queue.find(ClaimId(own))) else { return Ok(Seen::Changed) };
        if claim.grant.is_some() {
            return Ok(Seen::Holds);
        }
        let node_at = |place: u64| Some(nodes.get(usize::try_from(place).ok()?)?.name.clone());
        let kept = queue.blockers((claim.id, &claim.owner));
        let kept = kept.and_then(|kept| kept.into_iter().map(|claim| node_at(claim.number)).collect());
        Ok(kept.map_or(Seen::Changed, Seen::Waits))
    }

    /// Ends a claim if all of these nodes are there, and leaves a note. False if one is not, or the claim has changed,
    /// or the note cannot be left.
    async fn end_behind(
        &self,
        session: &Session,
        name: &Name,
        (own, known): (&Node, &Known),
        blockers: &[String],
        note: Option<(&str, &[u8])>,
    ) -> Answered<bool> {
        let parent = self.paths.of(name);
        let mut multi = session.client.new_multi_writer();
        for blocker in blockers {
            // What a node is called tells how much it takes, whatever else it says.
            multi.add_check_version(&format!("{parent}/{blocker}"), -1)?;
        }
        multi.add_delete(&format!("{parent}/{}", own.name), Some(known.version))?;
        if let Some((path, data)) = note {
            multi.add_create(path, data, &session.options(CreateMode::Ephemeral))?;
        }
        self.commit(session, multi).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::check::{client, name, request, stands};
    use super::super::release::release;
    use super::*;
    use crate::machine::{ClaimRequest, Shape};

    /// What is ended by what was seen a moment ago.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_claim_whose_turn_has_come_since_it_was_seen_to_wait_is_not_ended() {
        let desk = client("/unless-held").await;
        let permits =
            |units| ClaimRequest { shape: Shape::Permits { units, of: 3 }, ..request(Duration::from_secs(20)) };
        let (one, two, waits, behind) = (permits(2), permits(1), permits(1), permits(3));
        for request in [&one, &two, &waits, &behind] {
            stands(&desk, request).await;
        }
        let session = desk.usual().await.unwrap();
        let seen = async |id| {
            let (own, known) = desk.find(&session, &name(), id, Fresh::Yes).await.unwrap().remove(0);
            match desk.stands_behind(&session, &name(), &own, &known).await.unwrap() {
                Seen::Waits(blockers) => (own, known, blockers),
                Seen::Holds | Seen::Changed => panic!("{own:?} waits"),
            }
        };
        let [(own, known, by_both), (last, of_last, by_three)] = [seen(waits.id).await, seen(behind.id).await];
        assert_eq!((by_both.len(), by_three.len()), (2, 3), "holders, and the first who waits");
        assert_eq!(release(desk.clone(), name(), two.id, None).await.unwrap(), Released::Yes);
        assert!(!desk.end_behind(&session, &name(), (&own, &known), &by_both, None).await.unwrap(), "it holds");
        assert!(!desk.end_behind(&session, &name(), (&last, &of_last), &by_three, None).await.unwrap(), "it may hold");
        let ended = async |id| release_unless_held(desk.clone(), name(), id, None).await.unwrap();
        assert_eq!((ended(waits.id).await, ended(behind.id).await), (Released::Holds, Released::Yes));
    }
}
