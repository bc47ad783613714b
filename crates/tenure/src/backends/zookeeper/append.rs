//! Appending a claim, once, however often it is asked for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join;
use tokio::sync::OwnedMutexGuard;
use zookeeper_client::{CreateMode, Error as Refused};

use super::desk::Desk;
use super::error::{of_request, restless, unsure};
use super::listings::Listing;
use super::look::{Fresh, Judged};
use super::mind;
use super::moving::stem;
use super::names::Node;
use super::pulse::Trusted;
use super::record::{Known, Record};
use super::session::{Answered, Kind, Session};
use super::table::{Entry, Placed};
use crate::backend::{Answer, Claimed};
use crate::error::{Certainty, Result};
use crate::machine::{ClaimRequest, Queue, Refusal, Standing};
use crate::name::Name;

/// How often it is tried because others change the name meanwhile, or its parent is removed for being empty.
const TRIES_MAX: usize = 8;

/// One call for one claim.
struct Asking {
    desk: Arc<Desk>,
    name: Name,
    request: Arc<ClaimRequest>,
    session: Arc<Session>,
}

/// What a step came to: the answer, or that the next has to follow.
type Step = Answered<Option<Claimed>>;

/// # Cancel safety
///
/// Cancelling leaves the outcome unknown: whoever cancels releases the claim by its id.
pub(super) async fn claim(desk: Arc<Desk>, name: Name, request: ClaimRequest) -> Result<Answer<Claimed>> {
    if let Some(refusal @ Refusal::Units { .. }) = Queue::default().refusal(&request) {
        return Ok(Answer { value: Claimed::Refused(refusal), counted_from: desk.clock.now() });
    }
    let _under_way = desk.appends.turn(&name).await;
    let request = Arc::new(request);
    let id = request.id;
    let (entry, turn, asked_before) = desk.take_turn(&name, &request).await?;
    let session = entry.session.clone();
    let asking = Asking { desk: desk.clone(), name, request, session: session.clone() };
    let mut answer = asking.run(entry, asked_before).await;
    if answer.is_ok() && session.is_spoilt() {
        // It is given up in a moment, with all that was made in it.
        answer = Err(unsure().with_certainty(Certainty::Unknown));
    }
    if let Some(entry) = desk.table.get(id).filter(|entry| entry.session.has_ended()) {
        // All of that session has ended, and so has what was just made in it, whoever hears of it first.
        desk.session_ended(&entry.session);
        answer = answer.and_then(|_| Err(of_request(Refused::SessionExpired)));
    }
    match &answer {
        Ok(Claimed::Stands(_)) => mind::start(&desk, id),
        Ok(Claimed::Busy(_) | Claimed::Refused(_)) => {
            // What another attempt with this id has stays.
            desk.table.remove(id, None);
        }
        Err(error) if error.certainty() == Certainty::NotApplied && !asked_before => {
            desk.table.remove(id, None);
        }
        Err(_) => {}
    }
    drop(turn);
    let counted_from = desk.table.get(id).map_or(session, |entry| entry.session).counted();
    Ok(Answer { value: answer?, counted_from })
}

impl Desk {
    /// The entry of a claim, in a session that lives, and the turn to ask for it; whether it was asked for before.
    async fn take_turn(
        self: &Arc<Self>,
        name: &Name,
        request: &Arc<ClaimRequest>,
    ) -> Result<(Entry, OwnedMutexGuard<()>, bool)> {
        let mut in_doubt = false;
        for _ in 0..TRIES_MAX {
            let session = self.session(request.ttl).await?;
            let entry = || Entry {
                name: name.clone(),
                request: request.clone(),
                ttl: request.ttl,
                session: session.clone(),
                placed: None,
                grant: None,
                told: false,
                expires: self.clock.now() + request.ttl,
                ending: false,
                moving: 0,
                minded: false,
                ahead: None,
                gate: Arc::default(),
            };
            let (first, asked_before) = self.table.enter(request.id, entry);
            let turn = first.gate.clone().lock_owned().await;
            // Whoever had the turn before may have ended it, and then a new one has another gate.
            let present = self.table.get(request.id).filter(|entry| Arc::ptr_eq(&entry.gate, &first.gate));
            let Some(entry) = present else { continue };
            if !entry.session.has_ended() {
                return Ok((entry, turn, in_doubt || asked_before));
            }
            // Nothing can come of it in a session that is over, and nobody else would remove it: it may have been
            // entered after all of that session were.
            in_doubt |= asked_before;
            self.session_ended(&entry.session);
        }
        Err(restless())
    }
}

impl Asking {
    async fn run(&self, entry: Entry, asked_before: bool) -> Result<Claimed> {
        let mut in_doubt = asked_before;
        let has_little_left = self.session.doubt().is_some() && self.session.has_lost(self.session.timeout / 2);
        if has_little_left || self.session.is_spoilt() {
            // It would be granted with hardly anything left of it, or nothing, and be asked for again at once.
            let certainty = if asked_before { Certainty::Unknown } else { Certainty::NotApplied };
            return Err(unsure().with_certainty(certainty));
        }
        if let Some(placed) = entry.placed.clone() {
            if let Some(claimed) = self.repeat(&entry, &placed).await.map_err(of_request)? {
                return Ok(claimed);
            }
            // It has ended meanwhile: it is made anew.
            let fresh = |entry: &mut Entry| {
                (entry.placed, entry.grant, entry.ttl) = (None, None, self.request.ttl);
                (entry.told, entry.ending) = (false, false);
            };
            self.desk.table.change(self.request.id, fresh);
            in_doubt = false;
        }
        for _ in 0..TRIES_MAX {
            if let Some(claimed) = self.step(in_doubt).await.map_err(of_request)? {
                return Ok(claimed);
            }
        }
        Err(restless())
    }

    async fn step(&self, in_doubt: bool) -> Step {
        let ClaimRequest { id, attempt, queue, ref reenter, .. } = *self.request;
        let (desk, session, name) = (&self.desk, &self.session, &self.name);
        let may_be_there = in_doubt || attempt != 0;
        if may_be_there || !queue || reenter.is_some() {
            let listing = desk.listing(session, name, Fresh::Yes).await?;
            let found = if may_be_there { self.own_among(&listing.nodes).await? } else { Vec::new() };
            if !found.is_empty() {
                return self.adopt(found, listing).await;
            }
            match desk.judge(session, name, (&listing, listing.nodes.len()), &self.request, true).await? {
                Judged::Refused(refusal) => return Ok(Some(Claimed::Refused(refusal))),
                Judged::Waits(place, _) if !queue => return Ok(Some(Claimed::Busy(place))),
                Judged::Changed => return Ok(None),
                Judged::Within(outer, token) => {
                    let record = Record::of(&self.request, self.request.ttl);
                    let nested = desk.nest(session, name, (&outer, token), None, record).await?;
                    return Ok(nested.map(|placed| self.holds(placed)));
                }
                Judged::Holds | Judged::Waits(..) => {}
            }
        }
        match self.create().await {
            Ok((placed, listing)) => {
                if self.is_second(&placed, &listing).await? {
                    self.take_back(&placed).await?;
                    desk.table.change(id, |entry| entry.ending = false);
                    return Ok(None);
                }
                self.settle(placed, listing).await
            }
            Err(Refused::NoNode) => session.make_container(&desk.paths.of(name)).await.map(|()| None),
            Err(error) => Err(error),
        }
    }

    /// Whether another client made a node for this very claim in the same moment, and was first. The other one sees no
    /// earlier one, so that one node stays and both have it in turn. Only where ids come again: elsewhere the other can
    /// but be what is left of a request of one's own.
    async fn is_second(&self, placed: &Placed, listing: &Listing) -> Answered<bool> {
        if self.request.attempt == 0 {
            return Ok(false);
        }
        let place = listing.place_of(&placed.node).unwrap_or(listing.nodes.len());
        let earlier = listing.nodes.get(..place).unwrap_or_default();
        Ok(!self.own_among(earlier).await?.is_empty())
    }

    /// The nodes of this very claim among these, looked into.
    async fn own_among(&self, nodes: &[Node]) -> Answered<Vec<(Node, Arc<Known>)>> {
        let id = self.request.id;
        let called: Vec<Node> = nodes.iter().filter(|node| node.id == Some(id)).cloned().collect();
        let mut found = self.desk.look_into_all(&self.session, &self.name, &called).await?;
        found.retain(|(_, known)| known.is_of(id));
        Ok(found)
    }

    /// Makes a node at the end, and lists the name. Both are sent at once, unless others of this client look at the
    /// name: then one listing does for many.
    async fn create(&self) -> Answered<(Placed, Arc<Listing>)> {
        let (session, parent) = (&self.session, self.desk.paths.of(&self.name));
        let record = Record::of(&self.request, self.request.ttl);
        let (stem, data) = (stem(&record), record.bytes());
        let path = format!("{parent}/{stem}");
        session.made.fetch_add(1, Ordering::Relaxed);
        let options = session.options(CreateMode::EphemeralSequential);
        let visit = self.desk.lister.visit(session, &self.name, Fresh::No);
        let created = session.ask(Kind::Write, || session.client.create(&path, &data, &options));
        let (created, listed) = match visit.is_alone() {
            true => {
                let listed = session.ask(Kind::Read, || session.client.list_children(&parent));
                let (created, listed) = join(created, listed).await;
                (created, Some(listed))
            }
            false => (created.await, None),
        };
        let (stat, number) = created?;
        let number_given = u64::try_from(stat.czxid).unwrap_or(0);
        let node = format!("{stem}{number}");
        let placed = Placed { node, number: number_given, token: number_given, version: 0 };
        self.keep(&placed);
        let listing = match listed {
            Some(listed) => Arc::new(Listing::of(listed?)),
            None => self.desk.listing(session, &self.name, Fresh::No).await?,
        };
        Ok((placed, listing))
    }

    fn keep(&self, placed: &Placed) {
        let expires = self.desk.clock.now() + self.request.ttl;
        self.desk.table.change(self.request.id, |entry| entry.place(placed.clone(), expires));
    }

    /// Decides what becomes of a node that was made.
    async fn settle(&self, placed: Placed, mut listing: Arc<Listing>) -> Step {
        for _ in 0..TRIES_MAX {
            let place = listing.place_of(&placed.node);
            let Some((place, own)) = place.and_then(|place| Some((place, listing.nodes.get(place)?))) else {
                // Ended by somebody in the same moment.
                self.desk.table.change(self.request.id, |entry| entry.placed = None);
                return Ok(None);
            };
            let judged = self.desk.judge(&self.session, &self.name, (&listing, place), &self.request, true).await?;
            if !matches!(judged, Judged::Changed) {
                return self.follow(judged, placed, own.number).await;
            }
            listing = self.desk.listing(&self.session, &self.name, Fresh::No).await?;
        }
        Err(Refused::Timeout)
    }

    async fn follow(&self, judged: Judged, placed: Placed, number: i64) -> Step {
        match judged {
            Judged::Holds => Ok(Some(self.holds(placed))),
            Judged::Within(outer, _) if outer.number == number => Ok(Some(self.holds(placed))),
            Judged::Within(outer, token) => {
                let record = Record::of(&self.request, self.request.ttl);
                let own = Some(&placed);
                let nested = self.desk.nest(&self.session, &self.name, (&outer, token), own, record).await?;
                Ok(nested.map(|placed| self.holds(placed)))
            }
            Judged::Waits(place, ahead) if self.request.queue => {
                self.desk.table.change(self.request.id, |entry| entry.ahead = Some(ahead));
                Ok(Some(self.stands(&placed, Err(place))))
            }
            Judged::Waits(place, _) => self.take_back(&placed).await.map(|()| Some(Claimed::Busy(place))),
            Judged::Refused(refusal) => self.take_back(&placed).await.map(|()| Some(Claimed::Refused(refusal))),
            Judged::Changed => Ok(None),
        }
    }

    /// Removes a node that was made in vain.
    async fn take_back(&self, placed: &Placed) -> Answered<()> {
        let (desk, session, id) = (&self.desk, &self.session, self.request.id);
        desk.table.change(id, |entry| entry.ending = true);
        let path = format!("{}/{}", desk.paths.of(&self.name), placed.node);
        match session.ask(Kind::Write, || session.client.delete(&path, None)).await {
            Ok(()) | Err(Refused::NoNode) => {
                desk.table.change(id, |entry| entry.placed = None);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn holds(&self, placed: Placed) -> Claimed {
        self.keep(&placed);
        let grant = self.desk.grant(self.request.id, &placed);
        // The answer tells.
        self.desk.table.change(self.request.id, |entry| entry.told = true);
        self.stands(&placed, Ok(grant))
    }

    fn stands(
        &self,
        placed: &Placed,
        state: std::result::Result<crate::machine::Grant, crate::machine::Place>,
    ) -> Claimed {
        let ttl = self.desk.table.get(self.request.id).map_or(self.request.ttl, |entry| entry.ttl);
        Claimed::Stands(Standing { number: placed.number, ttl, state })
    }

    /// The same claim id again: the same answer, and a renewal. None if it has ended.
    async fn repeat(&self, entry: &Entry, placed: &Placed) -> Step {
        let (desk, id) = (&self.desk, self.request.id);
        if entry.request.shape != self.request.shape || entry.request.owner != self.request.owner {
            let (live, asked) = (entry.request.shape, self.request.shape);
            return Ok(Some(Claimed::Refused(Refusal::Mixed { live, asked })));
        }
        if entry.ending {
            // Its node was to be removed, and whether it was is not known.
            self.take_back(placed).await?;
            desk.table.change(id, |entry| entry.ending = false);
            return Ok(None);
        }
        let expires = desk.clock.now() + entry.ttl;
        desk.table.change(id, |entry| entry.expires = entry.expires.max(expires));
        if entry.request.attempt != self.request.attempt && !self.take_over(entry, placed).await? {
            return Ok(None);
        }
        let Some(mut entry) = desk.table.get(id) else { return Ok(None) };
        if self.request.ttl > entry.ttl {
            match desk.lengthen(id, &entry, self.request.ttl).await? {
                Some(longer) => entry = longer,
                None => return Ok(None),
            }
        }
        entry.session.beat().await?;
        Ok(desk.stand(id, &entry).await?.map(|(standing, _)| Claimed::Stands(standing)))
    }

    /// Another attempt with this id has it from now on: the one before cannot end it any more. False if it has ended.
    async fn take_over(&self, entry: &Entry, placed: &Placed) -> Answered<bool> {
        let (desk, session) = (&self.desk, &entry.session);
        let mut record = Record::of(&self.request, entry.ttl);
        record.token = Some(placed.token);
        record.number = Some(self.new_number(placed.number));
        let path = format!("{}/{}", desk.paths.of(&entry.name), placed.node);
        // Nobody else writes to nodes of this session, and calls for one claim come one after another.
        let written = session.ask(Kind::Write, || session.client.set_data(&path, &record.bytes(), None)).await;
        match written {
            Ok(stat) => {
                desk.forget(&path);
                let number = record.number.unwrap_or(placed.number);
                let taken = Placed { number, version: stat.version, ..placed.clone() };
                desk.table.change(self.request.id, |entry| {
                    entry.request = self.request.clone();
                    entry.placed = Some(taken);
                });
                Ok(true)
            }
            Err(Refused::NoNode) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A number that no attempt before was given.
    fn new_number(&self, last: u64) -> u64 {
        last.saturating_add(1).max(self.desk.clock.wall_micros())
    }

    /// There are nodes of this claim: of a call before whose answer was lost, of another process, or of a session
    /// that is over.
    async fn adopt(&self, mut found: Vec<(Node, Arc<Known>)>, listing: Arc<Listing>) -> Step {
        let (desk, session, name, id) = (&self.desk, &self.session, &self.name, self.request.id);
        let own = found.iter().position(|(_, known)| known.session == session.id);
        if let Some(own) = own {
            let (node, known) = found.remove(own);
            let alone = found.is_empty();
            self.remove(found).await?;
            let placed = Placed {
                node: node.name.clone(),
                number: known.number(),
                token: known.token(),
                version: known.version,
            };
            let expires = desk.clock.now() + self.request.ttl;
            if !desk.table.adopt(id, session.id, &placed, expires) {
                // It is being removed as one of no claim, and may go at any moment.
                return self.remove(vec![(node, known)]).await.map(|()| None);
            }
            if alone {
                return self.settle(placed, listing).await;
            }
            let listing = desk.listing(session, name, Fresh::No).await?;
            return self.settle(placed, listing).await;
        }
        let other =
            found.iter().position(|(_, known)| self.request.attempt != 0 && !desk.is_of_the_past(known.session));
        if let Some(other) = other {
            let (node, known) = found.remove(other);
            self.remove(found).await?;
            return self.fetch(&node, &known).await;
        }
        self.remove(found).await?;
        Ok(None)
    }

    /// Removes nodes of this claim that are nobody's any more.
    async fn remove(&self, nodes: Vec<(Node, Arc<Known>)>) -> Answered<()> {
        for (node, _) in nodes {
            let path = format!("{}/{}", self.desk.paths.of(&self.name), node.name);
            match self.session.ask(Kind::Write, || self.session.client.delete(&path, None)).await {
                Ok(()) | Err(Refused::NoNode) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Another process has the claim; from now on this one has it, in its place.
    async fn fetch(&self, node: &Node, known: &Known) -> Step {
        let Some(record) = &known.record else { return Ok(None) };
        if record.shape != self.request.shape || record.owner != self.request.owner {
            let (live, asked) = (record.shape, self.request.shape);
            return Ok(Some(Claimed::Refused(Refusal::Mixed { live, asked })));
        }
        let again = record.attempt == self.request.attempt;
        let number = if again { known.number() } else { self.new_number(known.number()) };
        let ttl = record.ttl().max(self.request.ttl);
        let trusted = Trusted { seen: self.desk.clock.now(), ttl: record.ttl() };
        let session = self.desk.session_outliving(self.request.id, ttl, trusted).await.map_err(|_| Refused::Timeout)?;
        let mut taken = Record::of(&self.request, ttl);
        (taken.token, taken.number) = (Some(known.token()), Some(number));
        if self.desk.transfer(&session, &self.name, (node, known.version), taken, trusted).await?.is_none() {
            return Ok(None);
        }
        let Some(entry) = self.desk.table.get(self.request.id) else { return Ok(None) };
        Ok(self.desk.stand(self.request.id, &entry).await?.map(|(standing, _)| Claimed::Stands(standing)))
    }
}
