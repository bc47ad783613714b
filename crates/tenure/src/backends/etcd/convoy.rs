//! Batches transactions: those that are asked for while others are under way are sent together.
//!
//! etcd is busy with requests more than with what they change. Each transaction of a batch keeps its own conditions and
//! its own answer. All that one transaction makes has one revision, which is token and place in the queue: so a batch
//! never has two transactions about one name. Where many ask for one name, theirs are sent side by side instead, as
//! many as etcd answers quickly.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tonic::{Code, Status};

use super::link::Link;
use super::road::{Failure, Road};
use super::window::{QUICK, Window};
use super::wire::{Answered as _, Request, Response, TxnRequest, TxnResponse};
use crate::clock::{Clock, Moment};
use crate::name::Name;

/// How many requests are under way before others wait to travel together.
const UNDER_WAY_MAX: usize = 4;
/// How many transactions of one name wait before some are sent by themselves, and how many are then under way at most.
const CROWD: usize = 8;
const CROWD_UNDER_WAY_MAX: usize = 64;
/// How many travel together. etcd takes 128 operations, all those of a transaction within it counted as one.
const TOGETHER_MAX: usize = 32;
/// How many names are looked at for one that many ask for.
const LOOKED_AT: usize = 64;

type Answer = std::result::Result<TxnResponse, Failure>;
/// Makes a transaction when it is sent: by then more may be known than when it was asked for. None if it was given up.
pub(super) type Make = Box<dyn FnOnce() -> Option<TxnRequest> + Send>;

#[derive(Debug)]
pub(super) struct Convoy {
    road: Arc<Road>,
    runtime: tokio::runtime::Handle,
    clock: Arc<dyn Clock>,
    yard: Mutex<Yard>,
}

#[derive(Debug)]
struct Yard {
    /// Batches under way.
    batches: usize,
    /// Transactions of crowds under way, each by itself.
    singles: usize,
    /// How many may be under way while many ask for one name.
    window: Window,
    /// Whether somebody is about to send all that there is room for.
    setting_out: bool,
    /// Those about each name, in order.
    waiting: HashMap<Name, VecDeque<Traveller>>,
    /// Their names: each once, and one that just set out behind all others.
    names: VecDeque<Name>,
}

struct Traveller {
    make: Make,
    answer: oneshot::Sender<Answer>,
}

impl fmt::Debug for Traveller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traveller").finish_non_exhaustive()
    }
}

impl Convoy {
    pub(super) fn new(road: Arc<Road>, runtime: tokio::runtime::Handle, clock: Arc<dyn Clock>) -> Arc<Self> {
        let yard = Yard {
            batches: 0,
            singles: 0,
            window: Window::new(UNDER_WAY_MAX, CROWD_UNDER_WAY_MAX),
            setting_out: false,
            waiting: HashMap::new(),
            names: VecDeque::new(),
        };
        Arc::new(Self { road, runtime, clock, yard: Mutex::new(yard) })
    }

    fn yard(&self) -> MutexGuard<'_, Yard> {
        self.yard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a transaction about one name, by itself or together with others. Those of one name are sent in the order
    /// they came.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves its outcome unknown.
    pub(super) async fn txn(self: &Arc<Self>, name: &Name, request: TxnRequest) -> Answer {
        self.run(name, Box::new(|| Some(request)), false).await
    }

    /// The same, for one that is made when it is sent.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves its outcome unknown.
    pub(super) async fn txn_made(self: &Arc<Self>, name: &Name, make: Make) -> Answer {
        self.run(name, make, false).await
    }

    /// The same, before all others of its name that were not sent yet.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves its outcome unknown.
    pub(super) async fn urgent(self: &Arc<Self>, name: &Name, request: TxnRequest) -> Answer {
        self.run(name, Box::new(|| Some(request)), true).await
    }

    async fn run(self: &Arc<Self>, name: &Name, make: Make, urgent: bool) -> Answer {
        let (answer, told) = oneshot::channel();
        self.yard().add(name, Traveller { make, answer }, urgent);
        self.set_out();
        told.await.unwrap_or_else(|_| given_up())
    }

    /// Sends those that wait, as long as there is room: each time a task of its own, so that nobody waits for a
    /// caller that nobody polls.
    fn set_out(self: &Arc<Self>) {
        if std::mem::replace(&mut self.yard().setting_out, true) {
            // Seen to by whoever does so already. That may be this very thread: a runtime that ends drops what is
            // given to it, and so ends a request that has not begun.
            return;
        }
        while let Some((together, single)) = self.next_together() {
            let place = Place { convoy: self.clone(), since: self.clock.now(), single, answered: false };
            let convoy = self.clone();
            self.runtime.spawn(async move { convoy.carry(place, together).await });
        }
    }

    /// Who sets out next, if there is somebody and room, and whether by itself.
    fn next_together(&self) -> Option<(Vec<Traveller>, bool)> {
        let mut yard = self.yard();
        let has_room = yard.batches + yard.singles < yard.window.size();
        let (together, single) = if self.road.settings.has_user() {
            // Not every etcd looks at the rights of a transaction within another: each is shown to it by itself.
            (if has_room { yard.first_of_each_name(1) } else { Vec::new() }, true)
        } else if yard.batches < UNDER_WAY_MAX {
            (yard.first_of_each_name(TOGETHER_MAX), false)
        } else {
            (if has_room { yard.first_of_a_crowd() } else { Vec::new() }, true)
        };
        // Told under the same lock that whoever comes next takes: it is seen to by one of both.
        yard.setting_out = !together.is_empty();
        if yard.setting_out {
            *yard.under_way(single) += 1;
        }
        yard.setting_out.then_some((together, single))
    }

    async fn carry(&self, place: Place, together: Vec<Traveller>) {
        let link = match self.road.link().await {
            Ok(link) => link,
            Err(error) => {
                for traveller in together {
                    let _ = traveller.answer.send(Err(Failure::Unreachable(error.again())));
                }
                return;
            }
        };
        let awaited = together.into_iter().filter(Traveller::is_awaited);
        let mut together: Vec<Sent> = awaited.filter_map(Sent::of).collect();
        if together.len() < 2 {
            if let Some(only) = together.pop() {
                let answer = release_if_left(place, &link, link.txn(only.request)).await;
                let _ = only.answer.send(self.road.judged(&link, answer));
            }
            return;
        }
        let success = together.iter().map(|sent| Request::Txn(sent.request.clone()).into()).collect();
        let request = TxnRequest { success, ..TxnRequest::default() };
        let answer = release_if_left(place, &link, link.txn(request)).await;
        match self.road.judged(&link, answer) {
            Ok(answer) => share(together, answer),
            Err(Failure::Told(status)) if is_refusal(&status) => self.one_by_one(&link, together).await,
            Err(Failure::Told(status)) => {
                for sent in together {
                    let _ = sent.answer.send(Err(Failure::Told(status.clone())));
                }
            }
            Err(Failure::Unreachable(error)) => {
                for sent in together {
                    let _ = sent.answer.send(Err(Failure::Unreachable(error.again())));
                }
            }
        }
    }

    /// One of them was refused, and all with it: nothing was done. Which one, each finds out by itself.
    async fn one_by_one(&self, link: &Link, together: Vec<Sent>) {
        let awaited = together.into_iter().filter(|sent| !sent.answer.is_closed());
        let each = awaited.map(|sent| async move {
            let answer = self.road.judged(link, link.txn(sent.request).await);
            let _ = sent.answer.send(answer);
        });
        futures_util::future::join_all(each).await;
    }
}

impl Traveller {
    /// One that was given up has not been sent, and must not be: its release may have been.
    fn is_awaited(&self) -> bool {
        !self.answer.is_closed()
    }
}

/// A transaction that is sent.
struct Sent {
    request: TxnRequest,
    answer: oneshot::Sender<Answer>,
}

impl Sent {
    fn of(traveller: Traveller) -> Option<Self> {
        Some(Self { request: (traveller.make)()?, answer: traveller.answer })
    }
}

impl Yard {
    fn add(&mut self, name: &Name, traveller: Traveller, urgent: bool) {
        let of_name = self.waiting.entry(name.clone()).or_default();
        if of_name.is_empty() {
            self.names.push_back(name.clone());
        }
        if urgent {
            of_name.push_front(traveller);
        } else {
            of_name.push_back(traveller);
        }
    }

    /// How many are under way that are like this.
    fn under_way(&mut self, single: bool) -> &mut usize {
        if single { &mut self.singles } else { &mut self.batches }
    }

    /// The next of each name, so many at most.
    fn first_of_each_name(&mut self, most: usize) -> Vec<Traveller> {
        let mut together = Vec::new();
        let mut more = Vec::new();
        while together.len() < most
            && let Some(name) = self.names.pop_front()
        {
            let Some(of_name) = self.waiting.get_mut(&name) else { continue };
            let next = std::iter::from_fn(|| of_name.pop_front()).find(Traveller::is_awaited);
            together.extend(next);
            if of_name.is_empty() {
                self.waiting.remove(&name);
            } else {
                more.push(name);
            }
        }
        self.names.extend(more);
        together
    }

    /// The next of a name that many ask for. Other such names have their turn before it has another; those that few
    /// ask for go with the next batch.
    fn first_of_a_crowd(&mut self) -> Vec<Traveller> {
        let is_crowd = |name: &Name| self.waiting.get(name).is_some_and(|of_name| of_name.len() >= CROWD);
        let Some(place) = self.names.iter().take(LOOKED_AT).position(is_crowd) else { return Vec::new() };
        let Some(name) = self.names.remove(place) else { return Vec::new() };
        let Some(of_name) = self.waiting.get_mut(&name) else { return Vec::new() };
        let next = std::iter::from_fn(|| of_name.pop_front()).find(Traveller::is_awaited);
        if of_name.is_empty() {
            self.waiting.remove(&name);
        } else {
            self.names.push_back(name);
        }
        next.into_iter().collect()
    }
}

fn given_up() -> Answer {
    Err(Failure::Told(Status::unavailable("the request was given up")))
}

/// Gives everyone its own answer.
fn share(together: Vec<Sent>, answer: TxnResponse) {
    let header = answer.header();
    let mut answers = answer.responses.into_iter();
    for sent in together {
        let answer = match answers.next().and_then(|op| op.response) {
            // What is within another carries no header of its own.
            Some(Response::Txn(own)) => Ok(TxnResponse { header: Some(header), ..own }),
            _ => Err(Failure::Told(Status::data_loss("an answer is missing"))),
        };
        let _ = sent.answer.send(answer);
    }
}

/// Whether etcd did nothing, and said so.
fn is_refusal(status: &Status) -> bool {
    let too_large = status.code() == Code::ResourceExhausted && status.message().contains("larger than max");
    too_large
        || matches!(
            status.code(),
            Code::NotFound
                | Code::InvalidArgument
                | Code::FailedPrecondition
                | Code::PermissionDenied
                | Code::OutOfRange
        )
}

/// Waits for an answer. Others need not wait for it once its link is left.
async fn release_if_left<T>(
    mut place: Place,
    link: &Link,
    answer: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answer = &mut answer => {
            place.answered = answer.is_ok();
            return answer;
        }
        () = link.leaving() => drop(place),
    }
    answer.await
}

/// One request under way. When it ends, also by being dropped, the next ones set out.
struct Place {
    convoy: Arc<Convoy>,
    since: Moment,
    single: bool,
    /// Whether etcd did as it was asked: that it refuses quickly does not mean that it has room for more.
    answered: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        {
            let mut yard = self.convoy.yard();
            let under_way = yard.under_way(self.single);
            *under_way = under_way.saturating_sub(1);
            let took = self.convoy.clock.now().since(self.since);
            yard.window.answered(if self.answered { took } else { took.max(QUICK) });
        }
        self.convoy.set_out();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A yard in which so many ask for each of these names, and their answers are awaited.
    fn yard(names: &[(&str, usize)]) -> (Yard, Vec<oneshot::Receiver<Answer>>) {
        let window = Window::new(UNDER_WAY_MAX, CROWD_UNDER_WAY_MAX);
        let (waiting, names_in_order) = (HashMap::new(), VecDeque::new());
        let mut yard = Yard { batches: 0, singles: 0, window, setting_out: false, waiting, names: names_in_order };
        let mut awaited = Vec::new();
        for (name, count) in names {
            for _ in 0..*count {
                let (answer, told) = oneshot::channel();
                awaited.push(told);
                yard.add(&Name::new(name).unwrap(), Traveller { make: Box::new(|| None), answer }, false);
            }
        }
        (yard, awaited)
    }

    #[test]
    fn a_crowd_does_not_wait_for_a_name_that_few_ask_for() {
        let (mut yard, _awaited) = yard(&[("quiet", 1), ("crowd", CROWD + 1)]);
        assert_eq!(yard.first_of_a_crowd().len(), 1);
        assert_eq!(yard.first_of_a_crowd().len(), 1);
        assert_eq!(yard.first_of_a_crowd().len(), 0, "too few are left");
    }

    #[test]
    fn a_batch_has_one_of_each_name() {
        let (mut yard, _awaited) = yard(&[("quiet", 1), ("crowd", CROWD)]);
        assert_eq!(yard.first_of_each_name(TOGETHER_MAX).len(), 2);
        assert_eq!(yard.first_of_each_name(TOGETHER_MAX).len(), 1);
    }

    #[test]
    fn one_that_nobody_awaits_is_passed_over() {
        let (mut yard, awaited) = yard(&[("x", 3)]);
        drop(awaited);
        assert_eq!(yard.first_of_each_name(TOGETHER_MAX).len(), 0);
        assert!(yard.waiting.is_empty() && yard.names.is_empty());
    }
}
