//! What a service tells of the claims that it serves for others: the same metrics, spans and flight recorder as a
//! client tells of its own.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::recent::{Ended, Recent};
use super::story::{Story, Wish};
use super::{Groups, Observer, Operation, Renewal, Trip, scheme};
use crate::backend::Backend;
use crate::clock::{Clock, Moment};
use crate::error::Loss;
use crate::name::Name;
use crate::owner::{ClaimId, Owner};
use crate::token::Token;

/// How many claims it keeps in mind. Of others it tells the grant, not how long they were held.
const CLAIMS_MAX: usize = 65_536;

/// The claims of callers, as far as this instance knows of them.
pub struct Served {
    observer: Observer,
    clock: Arc<dyn Clock>,
    claims: Mutex<HashMap<ClaimId, Known>>,
    /// Whether the store answers.
    up: AtomicBool,
}

/// A claim that waits between two requests, or holds.
struct Known {
    name: Name,
    label: Arc<str>,
    since: Moment,
    token: Option<Token>,
    story: Option<Story>,
    /// When it ends unless it is renewed.
    ends: Moment,
}

/// A request for a claim under way. Dropped before it has come to an end, it was cancelled.
pub struct Asking<'a> {
    served: &'a Served,
    id: ClaimId,
    owner: &'a Owner,
    name: &'a Name,
    label: &'a Arc<str>,
    since: Moment,
    wish: Wish<'a>,
}

/// A question to the store under way.
#[derive(Debug)]
pub struct Sent(Option<Trip>);

/// What the store is asked for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Asked {
    /// A claim.
    Claim,
    /// A renewal.
    Renew,
    /// A release.
    Release,
    /// A look.
    Inspect,
    /// A break.
    Break,
    /// The write of a memo.
    Memo,
}

impl Served {
    /// Of claims in this store. Names are told apart by these first segments of them; by none if there are none.
    pub fn new(backend: &dyn Backend, clock: Arc<dyn Clock>, groups: &[String]) -> Self {
        let groups = if groups.is_empty() { Groups::Off } else { Groups::named(groups) };
        let observer = Observer::new(scheme(backend.url()), groups, "", Arc::default());
        Self { observer, clock, claims: Mutex::default(), up: AtomicBool::new(true) }
    }

    /// A request for a claim begins, or one that waited is asked for again.
    pub fn asks<'a>(&'a self, id: ClaimId, owner: &'a Owner, name: &'a Name, label: &'a Arc<str>) -> Asking<'a> {
        let now = self.clock.now();
        let since = self.lock().get(&id).filter(|known| known.story.is_none()).map_or(now, |known| known.since);
        let wish = Wish::new(&self.observer, &*self.clock, name, label).since(since);
        wish.asks_as(owner);
        Asking { served: self, id, owner, name, label, since, wish }
    }

    /// A claim was renewed, and ends then unless it is renewed again.
    pub fn renewed(&self, id: ClaimId, ends: Moment) {
        let now = self.clock.now();
        self.observer.metrics.renewed(Renewal::Renewed, 1);
        if let Some(known) = self.lock().get_mut(&id) {
            if known.story.is_some() {
                // What was left of the lease that this renewal prolonged.
                self.observer.metrics.margin(known.ends.since(now));
            }
            known.ends = known.ends.max(ends);
        }
    }

    /// A renewal was not answered.
    pub fn renewal_failed(&self) {
        self.observer.metrics.renewed(Renewal::Failed, 1);
    }

    /// A claim was released.
    pub fn released(&self, id: ClaimId) {
        self.end(id, Ended::Released);
    }

    /// A renewal was told that its claim is gone, or was broken.
    pub fn lost(&self, id: ClaimId, loss: Loss) {
        let outcome = if matches!(loss, Loss::Broken { .. }) { Renewal::Broken } else { Renewal::Gone };
        self.observer.metrics.renewed(outcome, 1);
        self.end(id, Ended::Lost(loss));
    }

    fn end(&self, id: ClaimId, ended: Ended) {
        let known = self.lock().remove(&id);
        if let Some(known) = known {
            self.tell_end(known, ended);
        }
    }

    fn tell_end(&self, known: Known, ended: Ended) {
        let Some(story) = known.story else { return };
        if let Ended::Lost(loss) = &ended {
            self.observer.metrics.of(&known.name).lost(loss);
        }
        story.end(&self.observer, self.clock.now(), (&known.name, &known.label), known.token, ended);
    }

    /// Forgets claims that nobody has renewed here. Whether they were lost is not known: another instance may have
    /// renewed or released them.
    pub fn sweep(&self) {
        let now = self.clock.now();
        let dead: Vec<Known> = self.lock().extract_if(|_, known| known.ends <= now).map(|(_, known)| known).collect();
        for known in dead {
            self.tell_end(known, Ended::Left);
        }
    }

    /// The store is asked now. To be given back when it has answered.
    pub fn sent(&self, asked: Asked) -> Sent {
        let operation = match asked {
            Asked::Claim => Operation::Claim,
            Asked::Renew => Operation::Renew,
            Asked::Release => Operation::Release,
            Asked::Inspect => Operation::Inspect,
            Asked::Break => Operation::Break,
            Asked::Memo => Operation::Memo,
        };
        Sent(self.observer.metrics.sent(operation, self.clock.now()))
    }

    /// The store has answered.
    pub fn answered(&self, sent: Sent) {
        self.observer.metrics.answered(sent.0, &*self.clock);
    }

    /// Tells the recorder what was only counted until now.
    pub fn tell(&self) {
        self.observer.metrics.tell();
    }

    /// Whether the store answers.
    pub fn store_is(&self, up: bool) {
        if self.up.swap(up, Ordering::AcqRel) != up {
            self.observer.metrics.store_is(&self.up);
        }
    }

    /// The claims that ended last, the latest first.
    pub fn recent(&self) -> Vec<Recent> {
        self.observer.recent(self.clock.now())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, Known>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, id: ClaimId, known: Known) {
        let mut claims = self.lock();
        if claims.len() >= CLAIMS_MAX && !claims.contains_key(&id) {
            drop(claims);
            // How long it is held will not be known; that it was granted was told.
            return self.tell_end(known, Ended::Left);
        }
        let before = claims.insert(id, known);
        drop(claims);
        if let Some(before) = before {
            self.tell_end(before, Ended::Left);
        }
    }
}

impl Asking<'_> {
    /// It was granted, after it was waited for this one, if for anybody.
    pub fn granted(self, token: Option<Token>, behind: Option<Arc<str>>, ends: Moment) {
        let Self { served, id, owner, name, label, since, wish } = self;
        let mut claims = served.lock();
        if let Some(known) = claims.get_mut(&id).filter(|known| known.story.is_some() && known.token == token) {
            // A retry of what is held already: one grant, one story.
            known.ends = ends;
            drop(claims);
            return wish.put_off();
        }
        drop(claims);
        let Some(story) = wish.granted(served.clock.now(), behind, owner, token) else { return };
        let (name, label) = (name.clone(), label.clone());
        served.keep(id, Known { name, label, since, token, story: Some(story), ends });
    }

    /// The request is over, and the claim keeps its place until then.
    pub fn waits(self, ends: Moment) {
        let Self { served, id, owner: _, name, label, since, wish } = self;
        wish.put_off();
        served.keep(id, Known { name: name.clone(), label: label.clone(), since, token: None, story: None, ends });
    }

    /// It was not granted.
    pub fn ended(self, ended: Ended, behind: Option<Arc<str>>) {
        let mut claims = self.served.lock();
        // What is held goes on, whatever becomes of a request that asked for it again.
        if claims.get(&self.id).is_some_and(|known| known.story.is_none()) {
            claims.remove(&self.id);
        }
        drop(claims);
        self.wish.ended(ended, behind);
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("claims", &self.lock().len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Asking<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asking").field("name", self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::memory::MemoryStore;
    use crate::clock::SystemClock;
    use std::time::Duration;

    fn served() -> Served {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        Served::new(&MemoryStore::on(clock.clone()).client(), clock, &[])
    }

    #[test]
    fn a_wait_over_several_requests_is_one_and_its_end_is_told_once() {
        let served = served();
        let (owner, name, label) = (Owner::random(), Name::new("x").unwrap(), Arc::from("me"));
        let later = served.clock.now() + Duration::from_secs(60);
        served.asks(ClaimId(1), &owner, &name, &label).waits(later);
        let since = served.lock()[&ClaimId(1)].since;
        let behind: Option<Arc<str>> = Some("other".into());
        for _ in 0..2 {
            served.asks(ClaimId(1), &owner, &name, &label).granted(Some(Token(7)), behind.clone(), later);
        }
        assert!(served.lock()[&ClaimId(1)].since >= since);
        served.released(ClaimId(1));
        served.released(ClaimId(1));
        let told = served.recent();
        let released = told.iter().filter(|one| one.ended == Ended::Released).count();
        assert_eq!((released, told.len()), (1, 1), "nothing is told of the retry: {told:?}");
        assert_eq!(told[0].token, Some(Token(7)));
    }

    #[test]
    fn what_nobody_renews_here_is_forgotten() {
        let served = served();
        let (owner, name, label) = (Owner::random(), Name::new("x").unwrap(), Arc::from("me"));
        let now = served.clock.now();
        served.asks(ClaimId(1), &owner, &name, &label).granted(None, None, now);
        served.asks(ClaimId(2), &owner, &name, &label).waits(now);
        served.sweep();
        assert!(served.lock().is_empty());
        assert_eq!(served.recent()[0].ended, Ended::Left);
        assert_eq!(served.recent().len(), 1, "what waited was not granted, and nothing is told of it");
    }
}
