//! The watches of one client: notes of breaks, names that it waits for, keys that it holds by.

use std::collections::{HashMap, HashSet};

use tokio::sync::mpsc::UnboundedSender;

use super::ear::LOOK_EVERY;
use super::entry::Entry;
use super::silence::Belief;
use super::watched::Watched;
use super::wire::{NO_PUTS, Nothing, WatchCancel, WatchCommand, WatchCreate, WatchRequest, end_of};
use crate::clock::Moment;
use crate::name::Name;
use crate::owner::ClaimId;

/// The watch on notes of breaks. Others have higher numbers.
pub(super) const NOTES: i64 = 1;
/// For how many looks a name without waiters is watched on: whoever releases it often asks for it again.
const IDLE_MAX: u32 = 20;
/// How many names are watched before those without waiters are not watched on.
const NAMES_MAX: usize = 1_024;
/// How many keys a queue has that takes its time to be read.
const LONG: usize = 64;
/// How many keys are watched that claims hold by. Others are told by their renewals.
const HELD_MAX: usize = 16_384;

/// What a watch is about.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    /// All keys of a name.
    Name(Name),
    /// The key a claim holds by.
    Held(ClaimId),
}

#[derive(Debug, Default)]
pub(super) struct Watches {
    /// To the stream that is open; each watch sends two commands in its life.
    commands: Option<UnboundedSender<WatchRequest>>,
    names: HashMap<Name, Watched>,
    /// Those whose queues were long when they were last seen, also while they are not watched: a stream may be opened
    /// anew.
    long: HashSet<Name>,
    /// The name that a claim waits for.
    waits: HashMap<ClaimId, Name>,
    held: HashMap<ClaimId, i64>,
    subjects: HashMap<i64, Subject>,
    last: i64,
    /// Claims that came to hold since the last look, and those of the look before.
    granted: [Vec<ClaimId>; 2],
    /// Held keys that may have gone before their watch began.
    unseen: Vec<ClaimId>,
}

impl Watches {
    fn send(&self, command: WatchCommand) {
        if let Some(commands) = &self.commands {
            // The other end closes with the stream, and then every claim is looked at again.
            let _ = commands.send(WatchRequest { command: Some(command) });
        }
    }

    fn begin(&mut self, subject: Subject, key: Vec<u8>, range_end: Vec<u8>, filters: Vec<i32>) -> i64 {
        self.last = self.last.max(NOTES) + 1;
        let watch_id = self.last;
        self.send(WatchCommand::Create(WatchCreate { key, range_end, filters, watch_id }));
        self.subjects.insert(watch_id, subject);
        watch_id
    }

    fn end(&mut self, watch_id: i64) {
        self.subjects.remove(&watch_id);
        self.send(WatchCommand::Cancel(WatchCancel { watch_id }));
    }

    /// A stream is open, without any watch.
    pub(super) fn opened(&mut self, commands: UnboundedSender<WatchRequest>, notes: Vec<u8>) {
        self.closed();
        self.commands = Some(commands);
        let range_end = end_of(&notes);
        let create = WatchCreate { key: notes, range_end, filters: Vec::new(), watch_id: NOTES };
        self.send(WatchCommand::Create(create));
    }

    /// Nothing is told any more. Those who wait are entered again by their renewals.
    pub(super) fn closed(&mut self) {
        self.commands = None;
        self.subjects.clear();
        self.waits.clear();
        self.names.clear();
        let held: Vec<ClaimId> = self.held.drain().map(|(id, _)| id).collect();
        self.granted[0].extend(held);
    }

    /// Asks for an answer on the stream, should anybody depend on it.
    pub(super) fn ask_for_answer(&self) -> bool {
        let needed = !self.subjects.is_empty();
        if needed {
            self.send(WatchCommand::Progress(Nothing {}));
        }
        needed
    }

    pub(super) fn subject(&self, number: i64) -> Option<Subject> {
        self.subjects.get(&number).cloned()
    }

    pub(super) fn name(&mut self, name: &Name) -> Option<&mut Watched> {
        self.names.get_mut(name)
    }

    /// Whether a queue is so long, as far as is known, that reading it takes its time.
    pub(super) fn is_long(&mut self, name: &Name) -> bool {
        let Some(length) = self.names.get(name).and_then(Watched::length) else { return self.long.contains(name) };
        if length > LONG {
            self.found_long(name);
        } else {
            self.long.remove(name);
        }
        length > LONG
    }

    /// A queue was seen to be long.
    pub(super) fn found_long(&mut self, name: &Name) {
        if self.long.contains(name) {
            return;
        }
        if self.long.len() >= NAMES_MAX {
            // A hint, no more: the next look at each gives it again.
            self.long.clear();
        }
        self.long.insert(name.clone());
    }

    /// A claim waits for a name. True if its turn may have come: more may be known than when it was looked at.
    pub(super) fn enter(&mut self, name: &Name, under: &[u8], id: ClaimId, own: &Entry) -> bool {
        if self.commands.is_none() {
            return false;
        }
        if self.waits.get(&id).is_some_and(|before| before != name) {
            self.leave(id);
        }
        if !self.names.contains_key(name) {
            let number = self.begin(Subject::Name(name.clone()), under.to_vec(), end_of(under), Vec::new());
            self.names.insert(name.clone(), Watched::new(number, under.to_vec()));
        }
        let Some(watched) = self.names.get_mut(name) else { return false };
        self.waits.insert(id, name.clone());
        watched.enter(id, own) && watched.length().is_some()
    }

    fn leave(&mut self, id: ClaimId) {
        let Some(name) = self.waits.remove(&id) else { return };
        let Some(watched) = self.names.get_mut(&name) else { return };
        watched.leave(id);
        if !watched.has_waiters() && self.names.len() > NAMES_MAX {
            self.drop_name(&name);
        }
    }

    fn drop_name(&mut self, name: &Name) {
        if let Some(watched) = self.names.remove(name) {
            self.end(watched.number);
        }
    }

    /// A watch on a name is of no use.
    pub(super) fn give_up(&mut self, name: &Name, number: i64) {
        if self.names.get(name).is_some_and(|watched| watched.number == number) {
            self.waits.retain(|_, waits| waits != name);
            self.drop_name(name);
        }
    }

    /// A claim no longer waits; it may hold.
    pub(super) fn stops_waiting(&mut self, id: ClaimId) {
        self.leave(id);
    }

    /// A claim is over.
    pub(super) fn forget(&mut self, id: ClaimId) {
        self.leave(id);
        if let Some(number) = self.held.remove(&id) {
            self.end(number);
        }
    }

    /// A claim holds from now on. Its key is watched once it has done so for a while: most are released before.
    pub(super) fn holds(&mut self, id: ClaimId) {
        if self.granted[0].len() < HELD_MAX {
            self.granted[0].push(id);
        }
    }

    /// The claims that have held for a while, if they still do; and ends what nobody needs.
    pub(super) fn look(&mut self) -> Vec<ClaimId> {
        let idle = |watched: &mut Watched| {
            watched.idle = if watched.has_waiters() { 0 } else { watched.idle + 1 };
            watched.idle > IDLE_MAX
        };
        let idle: Vec<Name> =
            self.names.iter_mut().filter_map(|(name, watched)| idle(watched).then(|| name.clone())).collect();
        for name in idle {
            self.long.remove(&name);
            self.drop_name(&name);
        }
        let granted = std::mem::take(&mut self.granted[0]);
        std::mem::replace(&mut self.granted[1], granted)
    }

    /// Watches the key that a claim holds by.
    pub(super) fn watch_held(&mut self, id: ClaimId, key: &[u8]) {
        if self.held.len() < HELD_MAX && !self.held.contains_key(&id) && self.commands.is_some() {
            let number = self.begin(Subject::Held(id), key.to_vec(), Vec::new(), vec![NO_PUTS]);
            self.held.insert(id, number);
        }
    }

    /// A watch on a held key has begun: what was before it was not told.
    pub(super) fn held_from_now_on(&mut self, id: ClaimId) {
        self.unseen.push(id);
    }

    pub(super) fn take_unseen(&mut self) -> Vec<ClaimId> {
        std::mem::take(&mut self.unseen)
    }

    /// The names whose watches are to be checked now, and what is known by them. Called at each look.
    pub(super) fn take_due_checks(&mut self, now: Moment) -> Vec<Belief> {
        let due = self.names.iter_mut().filter_map(|(name, watched)| {
            let belief = |watched: &Watched| Belief {
                name: name.clone(),
                number: watched.number,
                holding: watched.holding(now),
                untold: watched.untold(),
            };
            watched.is_to_be_checked(LOOK_EVERY).then(|| belief(watched))
        });
        due.collect()
    }

    /// Watches a name anew if what is known of it is still this, which is not so. True if that was the case.
    pub(super) fn begin_anew_if_believed(&mut self, belief: &Belief) -> bool {
        let believed = self.names.get(&belief.name).is_some_and(|watched| watched.believes(belief));
        if believed {
            self.end(belief.number);
            self.begin_anew(belief.name.clone());
        }
        believed
    }

    fn begin_anew(&mut self, name: Name) {
        let Some(under) = self.names.get(&name).map(|watched| watched.under().to_vec()) else { return };
        let range_end = end_of(&under);
        let number = self.begin(Subject::Name(name.clone()), under, range_end, Vec::new());
        if let Some(watched) = self.names.get_mut(&name) {
            watched.begin_again(number);
        }
    }

    /// etcd ended a watch. A name is watched anew if it was too far behind.
    pub(super) fn cancelled(&mut self, number: i64, lagged: bool) {
        match self.subjects.remove(&number) {
            Some(Subject::Name(name)) if lagged => self.begin_anew(name),
            Some(Subject::Name(name)) => self.give_up(&name, number),
            Some(Subject::Held(id)) => drop(self.held.remove(&id)),
            None => {}
        }
    }

    /// From now on nothing that is told of a name is heard.
    #[cfg(test)]
    pub(super) fn fall_silent(&mut self, name: &Name) {
        let number = self.names.get(name).map(|watched| watched.number);
        number.and_then(|number| self.subjects.remove(&number));
    }
}
