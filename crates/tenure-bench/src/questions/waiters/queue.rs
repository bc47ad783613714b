//! One client's claims on one name: the first holds, the others wait.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tenure::backend::{Backend, ClaimRequest, Claimed, Event, ReleaseRequest, Released, RenewRequest, Renewed};
use tenure::{ClaimId, Name};
use tenure_load::Samples;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{TTL, claim};
use crate::server::Looker;

/// What is measured, in the order in which it is done: the queue is as long afterwards as before.
pub(super) const OPS: [&str; 3] = ["claim", "renew", "release"];
/// How many are asked for at once where nothing is measured, and how many the engine renews at once.
const BATCH: usize = 256;
/// Operations that take long are measured for so long, and at least so often.
const SPAN: Duration = Duration::from_secs(3);
const TURNS_MIN: usize = 10;
/// A grant that is not told by then is not waited for.
const NEWS_WITHIN: Duration = Duration::from_secs(10);

/// The claims, in order.
pub(super) struct Queue {
    backend: Arc<dyn Backend>,
    name: Name,
    ttl: Duration,
    claims: VecDeque<ClaimRequest>,
    events: UnboundedReceiver<Event>,
}

fn wrong(error: impl ToString) -> String {
    error.to_string()
}

impl Queue {
    /// A name of its own with one holder and so many who wait for it.
    pub(super) async fn of(backend: Arc<dyn Backend>, waiters: usize) -> Result<Self, String> {
        let (say, events) = unbounded_channel();
        backend.listen(Arc::new(move |event| {
            let _ = say.send(event);
        }));
        let name = Name::new(format!("bench/queue/{}", ClaimId::random())).map_err(wrong)?;
        let ttl = backend.capabilities().nearest_ttl(TTL);
        let mut queue = Self { backend, name, ttl, claims: VecDeque::new(), events };
        queue.join().await?;
        while queue.claims.len() <= waiters {
            let some = (queue.claims.len()..=waiters).take(BATCH).map(|_| claim(ttl));
            let some: Vec<ClaimRequest> = some.collect();
            let calls = some.iter().map(|request| queue.backend.claim(&queue.name, request.clone()));
            try_join_all(calls).await.map_err(wrong)?;
            queue.claims.extend(some);
        }
        queue.in_order().await?;
        Ok(queue)
    }

    /// How long each operation takes: one after the other, each so often.
    pub(super) async fn times(&mut self, turns: usize) -> Result<Value, String> {
        let mut samples: [Samples; 3] = Default::default();
        let began = Instant::now();
        for turn in 0..turns {
            if turn >= TURNS_MIN && began.elapsed() > SPAN {
                break;
            }
            for (op, samples) in OPS.iter().zip(&mut samples) {
                let asked = Instant::now();
                self.work(op, turn).await?;
                samples.push(asked.elapsed().as_secs_f64() * 1e6);
            }
        }
        let mut result = json!({});
        for (op, samples) in OPS.iter().zip(samples) {
            let [p50, p99] = samples.percentiles([50.0, 99.0]);
            result[op] = json!({ "p50_us": p50, "p99_us": p99 });
        }
        Ok(result)
    }

    /// What each operation costs a Redis: its time in the script, and the calls that the script makes.
    pub(super) async fn looks(&mut self, looker: &mut Looker, turns: usize, result: &mut Value) -> Result<(), String> {
        let mut sums = [(0.0, 0.0); 3];
        for turn in 0..turns {
            for (op, sum) in OPS.iter().zip(&mut sums) {
                let before = looker.look()?;
                self.work(op, turn).await?;
                let after = looker.look()?;
                sum.0 += after.script_us - before.script_us;
                sum.1 += (after.commands - before.commands) - (after.scripts - before.scripts);
            }
        }
        for (op, (micros, calls)) in OPS.iter().zip(sums) {
            result[op]["server_us"] = json!(micros / turns as f64);
            result[op]["calls"] = json!(calls / turns as f64);
        }
        Ok(())
    }

    /// Renews all of them in batches at once, as the engine does three times in each ttl; milliseconds. Nothing where
    /// those who wait have no claims that could be renewed.
    pub(super) async fn renew_all(&mut self) -> Result<Option<f64>, String> {
        if !self.backend.capabilities().queue {
            return Ok(None);
        }
        let all: Vec<RenewRequest> = self.claims.iter().map(|request| self.renewal(request)).collect();
        let asked = Instant::now();
        let answers = try_join_all(all.chunks(BATCH).map(|batch| self.backend.renew(batch.to_vec(), false)));
        let answers = answers.await.map_err(wrong)?;
        let took = asked.elapsed().as_secs_f64() * 1e3;
        let stand = answers.iter().flat_map(|answer| &answer.value).filter(|one| matches!(one, Renewed::Stands(_)));
        let (stand, all) = (stand.count(), self.claims.len());
        if stand == all { Ok(Some(took)) } else { Err(format!("{stand} of {all} were renewed")) }
    }

    /// Ends all, the last first, so that none is granted.
    pub(super) async fn end(mut self) -> Result<(), String> {
        while !self.claims.is_empty() {
            let rest = self.claims.len().saturating_sub(BATCH);
            let last = self.claims.split_off(rest);
            let calls = last.iter().rev().map(|request| self.backend.release(&self.name, ReleaseRequest::of(request)));
            try_join_all(calls).await.map_err(wrong)?;
        }
        self.backend.close().await.map_err(wrong)
    }

    /// Does one operation.
    async fn work(&mut self, op: &str, turn: usize) -> Result<(), String> {
        match op {
            "claim" => self.join().await,
            "renew" => {
                // Evenly over the whole queue, however many turns there are.
                let depth = (turn as f64 * 0.618_034).fract();
                self.renew((self.claims.len() as f64 * depth) as usize).await
            }
            _ => self.hand_on().await,
        }
    }

    /// One more claim, at the end.
    async fn join(&mut self) -> Result<(), String> {
        let request = claim(self.ttl);
        self.claims.push_back(request.clone());
        match self.backend.claim(&self.name, request).await.map_err(wrong)?.value {
            Claimed::Refused(refusal) => Err(format!("a claim was refused: {refusal:?}")),
            // Without a queue it is kept in mind, and told when to ask again.
            Claimed::Stands(_) | Claimed::Busy(_) => Ok(()),
        }
    }

    fn renewal(&self, request: &ClaimRequest) -> RenewRequest {
        RenewRequest { ttl: self.ttl, ..RenewRequest::of(&self.name, request) }
    }

    /// Renews one; who is only kept in mind asks again.
    async fn renew(&self, index: usize) -> Result<(), String> {
        let request = &self.claims[index];
        if index > 0 && !self.backend.capabilities().queue {
            self.backend.claim(&self.name, request.clone()).await.map_err(wrong)?;
            return Ok(());
        }
        let answer = self.backend.renew(vec![self.renewal(request)], false).await.map_err(wrong)?;
        match answer.value.first() {
            Some(Renewed::Stands(_)) => Ok(()),
            other => Err(format!("the renewal of place {index} was answered with {other:?}")),
        }
    }

    /// The holder releases; over once the next one knows that it holds.
    async fn hand_on(&mut self) -> Result<(), String> {
        let holder = self.claims.pop_front().ok_or("nobody holds")?;
        match self.backend.release(&self.name, ReleaseRequest::of(&holder)).await.map_err(wrong)? {
            Released::Yes => {}
            other => return Err(format!("a release was answered with {other:?}")),
        }
        let next = tokio::time::timeout(NEWS_WITHIN, self.granted()).await;
        let next = next.map_err(|_| format!("nobody was granted within {} s", NEWS_WITHIN.as_secs()))??;
        match self.claims.iter().position(|request| request.id == next) {
            Some(0) => Ok(()),
            // Without a queue the order is that in which most servers saw them.
            Some(index) if !self.backend.capabilities().queue => {
                if let Some(request) = self.claims.remove(index) {
                    self.claims.push_front(request);
                }
                Ok(())
            }
            place => Err(format!("granted out of turn, to place {place:?}")),
        }
    }

    /// Who is granted next.
    async fn granted(&mut self) -> Result<ClaimId, String> {
        loop {
            match self.events.recv().await.ok_or("no more news")? {
                Event::Granted { id, .. } => return Ok(id),
                Event::TryNow { id, .. } => {
                    let request = self.claims.iter().find(|request| request.id == id);
                    let Some(request) = request.cloned() else { continue };
                    let answer = self.backend.claim(&self.name, request).await.map_err(wrong)?;
                    if let Claimed::Stands(_) = answer.value {
                        return Ok(id);
                    }
                }
                Event::Ended { loss, .. } => return Err(format!("a claim was lost: {loss:?}")),
                _ => {}
            }
        }
    }

    /// Brings the claims into the store's order: those that came at once may stand in any.
    async fn in_order(&mut self) -> Result<(), String> {
        if !self.backend.capabilities().queue {
            return Ok(());
        }
        let view = self.backend.inspect(&self.name).await.map_err(wrong)?;
        let places: HashMap<ClaimId, usize> =
            view.waiters.iter().enumerate().map(|(place, waiter)| (waiter.claim.0, place + 1)).collect();
        let (stand, all) = (places.len() + 1, self.claims.len());
        if stand != all {
            return Err(format!("{stand} of {all} stand in the queue"));
        }
        self.claims.make_contiguous().sort_by_key(|request| places.get(&request.id).copied().unwrap_or(0));
        Ok(())
    }
}
