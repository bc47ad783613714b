//! Looking at a name: its claims in their order, and how one of them stands.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::{join, join_all};
use zookeeper_client::Error as Refused;

use super::desk::Desk;
use super::listings::Listing;
use super::names::{Node, tag_of};
use super::record::{Known, claim_of, id_of};
use super::session::{Answered, Kind, Session};
use crate::clock::Moment;
use crate::machine::{ClaimRequest, Place, Queue, Refusal, Shape};
use crate::name::Name;

/// How many nodes are read at a time.
const READS_MAX: usize = 256;
/// How many hand-overs a listing may be behind, and still tell who holds.
const FRONT_MAX: usize = 64;

/// How a claim stands behind others.
#[derive(Debug)]
pub(super) enum Judged {
    /// It holds.
    Holds,
    /// It holds as long as it stands within this claim of its owner, whose token is told.
    Within(Node, u64),
    /// It waits, and for whom.
    Waits(Place, Ahead),
    /// It cannot stand there.
    Refused(Refusal),
    /// What was seen is not so any more.
    Changed,
}

/// Whether everything is to be seen that anybody has been told of, or what this session has been told of suffices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fresh {
    Yes,
    No,
}

impl Desk {
    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn children(&self, session: &Session, path: &str, fresh: Fresh) -> Answered<Vec<String>> {
        let listed = session.ask(Kind::Read, || session.client.list_children(path));
        let listed = match fresh {
            Fresh::No => listed.await,
            Fresh::Yes => {
                // Answered in the order they are sent in, which is that of their first poll.
                let synced = session.ask(Kind::Read, || session.client.sync(path));
                let (synced, listed) = join(synced, listed).await;
                synced?;
                listed
            }
        };
        match listed {
            Err(Refused::NoNode) => Ok(Vec::new()),
            listed => listed,
        }
    }

    /// What a node says; none if it has gone. Whose it is, and what it is given, never changes.
    async fn look_into(&self, session: &Session, path: &str) -> Answered<Option<Arc<Known>>> {
        match session.ask(Kind::Read, || session.client.get_data(path)).await {
            Ok((data, stat)) => {
                let known = Arc::new(Known::of(&data, &stat));
                if known.is_claim(path) {
                    // Data are looked into each time: a claim may come to be called as they were.
                    self.learn(path, known.clone());
                }
                Ok(Some(known))
            }
            Err(Refused::NoNode) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What all these nodes say, but for those that have gone or are no claims.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn look_into_all(
        &self,
        session: &Session,
        name: &Name,
        nodes: &[Node],
    ) -> Answered<Vec<(Node, Arc<Known>)>> {
        let mut seen = self.read_all(session, name, nodes, false).await?;
        seen.retain(|(node, known)| known.is_claim(&node.name));
        Ok(seen)
    }

    async fn read_all(
        &self,
        session: &Session,
        name: &Name,
        nodes: &[Node],
        remembered: bool,
    ) -> Answered<Vec<(Node, Arc<Known>)>> {
        let parent = self.paths.of(name);
        let mut seen = Vec::with_capacity(nodes.len());
        for some in nodes.chunks(READS_MAX) {
            let looks = some.iter().map(|node| {
                let path = format!("{parent}/{}", node.name);
                async move {
                    let known = match self.known(&path).filter(|_| remembered) {
                        Some(known) => Some(known),
                        None => self.look_into(session, &path).await?,
                    };
                    Ok(known.map(|known| (node.clone(), known)))
                }
            });
            let looked: Answered<Vec<_>> = join_all(looks).await.into_iter().collect();
            seen.extend(looked?.into_iter().flatten());
        }
        Ok(seen)
    }

    /// The store's time, as far as this machine knows it. For people: nothing is decided by it.
    pub(super) fn wall(&self) -> Moment {
        Moment(self.clock.wall_micros())
    }

    /// How a claim stands that comes to this place, or stands there already.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn judge(
        &self,
        session: &Session,
        name: &Name,
        (listing, place): (&Listing, usize),
        request: &ClaimRequest,
        comes: bool,
    ) -> Answered<Judged> {
        let before = listing.nodes.get(..place).unwrap_or(&listing.nodes);
        let plain = request.shape == Shape::Exclusive && request.reenter.is_none();
        if plain
            && listing.is_plain_before(place, tag_of(&request.owner))
            && let Some(waits) = self.waits_behind(session, name, listing, before).await?
        {
            return Ok(waits);
        }
        let Some((before, known)) = self.claims_among(session, name, before, tag_of(&request.owner)).await? else {
            return Ok(Judged::Changed);
        };
        let now = self.wall();
        let claims = before.iter().map(|node| {
            let known = known.get(&node.name).map(|known| &**known);
            claim_of(node, known, now, self.limits().max)
        });
        let queue = Queue::ordered(claims);
        if let Some(refusal) = queue.refusal(request).filter(|_| comes) {
            return Ok(Judged::Refused(refusal));
        }
        if let Some(outer) = queue.re_entered_by(request) {
            let node = before.iter().find(|node| id_of(node) == outer.id);
            let token = outer.grant.map_or(0, |grant| grant.token.get());
            return Ok(node.map_or(Judged::Changed, |node| Judged::Within((*node).clone(), token)));
        }
        if queue.has_room_for(request) {
            return Ok(Judged::Holds);
        }
        Ok(Judged::Waits(queue.place_at_the_end(now), ahead(&before, request.shape)))
    }

    /// How an exclusive claim waits behind exclusive ones of other owners: the first holds, the last is waited for.
    /// None if there are none, or the first turns out to be no claim.
    ///
    /// Holders that have gone since the listing are passed over. In a queue that moves on as fast as it is listed,
    /// everybody would list it again and again otherwise; and whoever waits has a watch on the last one, whoever holds.
    async fn waits_behind(
        &self,
        session: &Session,
        name: &Name,
        listing: &Listing,
        before: &[Node],
    ) -> Answered<Option<Judged>> {
        let Some(last) = before.last() else { return Ok(None) };
        let front = self.front(session, name, listing).await?;
        // None: all before it may have gone.
        let first = front.and_then(|(at, known)| Some((before.get(at)?, before.len() - at, known)));
        let Some((first, ahead, known)) = first else { return Ok(Some(Judged::Changed)) };
        if !known.is_claim(&first.name) {
            return Ok(None);
        }
        let now = self.wall();
        let queue = Queue::ordered([claim_of(first, Some(&known), now, self.limits().max)]);
        let holder = queue.place_at_the_end(now);
        let place = Place { ahead, waiters_ahead: ahead - 1, ..holder };
        Ok(Some(Judged::Waits(place, Ahead::Node(last.name.clone()))))
    }

    /// The place of the first node of a listing that is there still, and what it says; looked into once for all who
    /// share the listing. None if so many have gone since that it is not known.
    async fn front(&self, session: &Session, name: &Name, listing: &Listing) -> Answered<Option<(usize, Arc<Known>)>> {
        let look = async || {
            // As a rule the first is there. Should it have gone, others may have as well.
            for places in [0..1, 1..FRONT_MAX] {
                let some = listing.nodes.get(places.start..places.end.min(listing.nodes.len())).unwrap_or_default();
                let read = self.read_all(session, name, some, true).await?;
                if let Some((node, known)) = read.into_iter().next() {
                    return Ok(listing.place_of(&node.name).map(|at| (at, known)));
                }
            }
            Ok(None)
        };
        listing.front.get_or_try_init(look).await.cloned()
    }

    /// The claims among these nodes, and what those say that matter to an owner with this tag. None if one of them
    /// has gone.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn claims_among<'a>(
        &self,
        session: &Session,
        name: &Name,
        nodes: &'a [Node],
        tag: u64,
    ) -> Answered<Option<(Vec<&'a Node>, HashMap<String, Arc<Known>>)>> {
        let mut claims: Vec<&Node> = nodes.iter().collect();
        let mut seen = HashMap::new();
        // Each time either all is known, or there is one less that is not.
        loop {
            // The first is who holds, those of this owner decide whether it re-enters, and what is not called as
            // claims are here may be data. Of the others the shape is enough.
            let matters = |(place, node): &(usize, &&Node)| *place == 0 || node.tag == Some(tag) || node.id.is_none();
            let asked = claims.iter().enumerate().filter(matters).filter(|(_, node)| !seen.contains_key(&node.name));
            let asked: Vec<Node> = asked.map(|(_, node)| (*node).clone()).collect();
            if asked.is_empty() {
                return Ok(Some((claims, seen)));
            }
            let read = self.read_all(session, name, &asked, true).await?;
            if read.len() < asked.len() {
                return Ok(None);
            }
            let (found, data): (Vec<_>, Vec<_>) =
                read.into_iter().partition(|(node, known)| known.is_claim(&node.name));
            seen.extend(found.into_iter().map(|(node, known)| (node.name, known)));
            claims.retain(|node| !data.iter().any(|(data, _)| data.name == node.name));
        }
    }
}

/// What a waiting claim has to see go before it is worth looking again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ahead {
    /// This one.
    Node(String),
    /// Any of them: how many fit is not seen by one alone.
    Any,
    /// There is nobody.
    Nobody,
}

/// Whom a claim of this shape waits for behind these: one that goes wakes one that waits.
fn ahead(before: &[&Node], shape: Shape) -> Ahead {
    let blocker = match shape {
        Shape::Exclusive => before.last(),
        Shape::Shared => before.iter().rev().find(|node| node.shape != Shape::Shared),
        Shape::Permits { .. } => return Ahead::Any,
    };
    blocker.map_or(Ahead::Nobody, |node| Ahead::Node(node.name.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::zookeeper::names::{digits, prefix};
    use crate::owner::{ClaimId, Owner};

    #[test]
    fn a_writer_waits_for_the_one_before_and_a_reader_for_the_last_writer() {
        let node = |number: i64, shape| {
            let owner = Owner::random();
            let name = format!("{}{}", prefix(ClaimId::random(), 0, &owner, shape), digits(number));
            Node::parse(&name).unwrap()
        };
        let nodes = [node(1, Shape::Exclusive), node(2, Shape::Shared), node(3, Shape::Shared)];
        let nodes = nodes.each_ref();
        assert_eq!(ahead(&nodes, Shape::Exclusive), Ahead::Node(nodes[2].name.clone()));
        assert_eq!(ahead(&nodes, Shape::Shared), Ahead::Node(nodes[0].name.clone()));
        assert_eq!(ahead(&nodes[1..], Shape::Shared), Ahead::Nobody);
        assert_eq!(ahead(&nodes, Shape::Permits { units: 1, of: 2 }), Ahead::Any);
    }
}
