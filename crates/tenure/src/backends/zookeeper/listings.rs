//! What many looks at a name share: one listing for all who ask while another is under way, and what each needs of it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::OnceCell;

use super::desk::{Desk, pause};
use super::look::Fresh;
use super::names::{Node, Order, in_order};
use super::record::Known;
use super::session::{Answered, Session};
use crate::machine::Shape;
use crate::name::Name;

/// The claims of a name in order. A thousand that wait look at one listing a thousand times: each look takes a few
/// steps.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) nodes: Vec<Node>,
    order: Order,
    /// The first place of each owner's tag, once somebody asks: the first in the queue never does.
    tags: OnceLock<HashMap<u64, usize>>,
    /// So many at the front are exclusive, and called as claims are here.
    plain: usize,
    /// See [`Desk::front`].
    pub(super) front: OnceCell<Option<(usize, Arc<Known>)>>,
}

impl Listing {
    pub(super) fn of(children: Vec<String>) -> Self {
        let nodes = in_order(children);
        let plain = nodes.iter().take_while(|node| node.id.is_some() && node.shape == Shape::Exclusive).count();
        Self { order: Order::of(&nodes), nodes, tags: OnceLock::new(), plain, front: OnceCell::new() }
    }

    fn first_of(&self, tag: u64) -> Option<usize> {
        let tags = self.tags.get_or_init(|| {
            let mut tags = HashMap::with_capacity(self.nodes.len());
            for (place, node) in self.nodes.iter().enumerate() {
                if let Some(tag) = node.tag {
                    tags.entry(tag).or_insert(place);
                }
            }
            tags
        });
        tags.get(&tag).copied()
    }

    /// The place of the node that is called so.
    pub(super) fn place_of(&self, name: &str) -> Option<usize> {
        let own = Node::parse(name)?;
        self.nodes.binary_search_by(|node| self.order.compare(node, &own)).ok()
    }

    /// Whether all before this place are exclusive claims of owners without this tag: whoever comes behind them
    /// waits, and nothing else of them matters.
    pub(super) fn is_plain_before(&self, place: usize, tag: u64) -> bool {
        place == 0 || place <= self.plain && self.first_of(tag).is_none_or(|first| first >= place)
    }
}

/// Whose look, at what, and whether it sees all that anybody has been told of.
type Key = (i64, Name, Fresh);
/// The latest listing. Locked while the next is under way.
type Latest = Arc<tokio::sync::Mutex<Option<Listed>>>;

/// A listing, and its turn. How long it took.
#[derive(Debug)]
struct Listed {
    turn: u64,
    listing: Arc<Listing>,
    took: Duration,
}

/// So many who wait for a listing are a crowd: more will come, and the next listing waits for them, for as long as
/// the one before it took, and so long at most.
const CROWD: usize = 8;
const CROWD_PAUSE_MAX: Duration = Duration::from_millis(50);

/// The names that are being looked at.
#[derive(Debug, Default)]
pub(super) struct Lister {
    turns: AtomicU64,
    names: Mutex<HashMap<Key, Latest>>,
}

/// Somebody who looks at a name, or is about to.
pub(super) struct Visit<'a> {
    lister: &'a Lister,
    key: Key,
    latest: Latest,
}

impl Lister {
    fn names(&self) -> MutexGuard<'_, HashMap<Key, Latest>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self) -> u64 {
        self.turns.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn visit(&self, session: &Session, name: &Name, fresh: Fresh) -> Visit<'_> {
        let key = (session.id, name.clone(), fresh);
        let latest = self.names().entry(key.clone()).or_default().clone();
        Visit { lister: self, key, latest }
    }
}

impl Visit<'_> {
    /// How many of this client look at the name.
    fn count(&self) -> usize {
        let _names = self.lister.names();
        // One is the table's.
        Arc::strong_count(&self.latest).saturating_sub(1)
    }

    /// Whether nobody else of this client looks at the name.
    pub(super) fn is_alone(&self) -> bool {
        self.count() <= 1
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        let mut names = self.lister.names();
        // One is this, and one the table's.
        if Arc::strong_count(&self.latest) <= 2 {
            names.remove(&self.key);
        }
    }
}

impl Desk {
    /// The claims of a name as they are at some moment after this was called. Those who come while a listing is under
    /// way share the next.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn listing(&self, session: &Session, name: &Name, fresh: Fresh) -> Answered<Arc<Listing>> {
        let came = self.lister.turn();
        let visit = self.lister.visit(session, name, fresh);
        let mut latest = visit.latest.lock().await;
        if let Some(listed) = latest.as_ref().filter(|listed| listed.turn > came) {
            return Ok(listed.listing.clone());
        }
        let took = latest.as_ref().map_or(Duration::ZERO, |listed| listed.took);
        if !took.is_zero() && visit.count() > CROWD {
            pause(took.min(CROWD_PAUSE_MAX)).await;
        }
        let (turn, begun) = (self.lister.turn(), self.clock.now());
        let listing = Arc::new(Listing::of(self.children(session, &self.paths.of(name), fresh).await?));
        let took = self.clock.now().since(begun);
        *latest = Some(Listed { turn, listing: listing.clone(), took });
        Ok(listing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::zookeeper::names::{digits, prefix, tag_of};
    use crate::owner::{ClaimId, Owner};

    #[test]
    fn a_listing_knows_who_stands_where_and_from_where_on_it_takes_a_closer_look() {
        let owners: Vec<Owner> = (0..4).map(|_| Owner::random()).collect();
        let node = |number: i64, shape| {
            let owner = &owners[usize::try_from(number).unwrap() % 4];
            format!("{}{}", prefix(ClaimId::random(), 0, owner, shape), digits(number))
        };
        let mut children: Vec<String> = (0..6).rev().map(|number| node(number, Shape::Exclusive)).collect();
        children.push(node(6, Shape::Shared));
        children.push("somebody-else-lock-0000000007".to_owned());
        let listing = Listing::of(children);
        for (place, of) in listing.nodes.iter().enumerate() {
            assert_eq!(listing.place_of(&of.name), Some(place));
        }
        assert_eq!(listing.place_of(&node(3, Shape::Exclusive)), None, "another node with that number");
        assert_eq!(listing.place_of("somebody"), None);
        let tag = tag_of(&Owner::random());
        assert!((0..=6).all(|place| listing.is_plain_before(place, tag)));
        assert!(!listing.is_plain_before(7, tag), "behind a reader");
        assert!(listing.is_plain_before(2, tag_of(&owners[2])) && !listing.is_plain_before(3, tag_of(&owners[2])));
    }
}
