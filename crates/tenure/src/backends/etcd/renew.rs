//! Keeping claims alive: one keep-alive for each lease, one look at each claim behind it, and one at each queue that
//! they wait in.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tonic::Status;

use super::desk::{Desk, READS_MAX, Stood};
use super::entry::{Entry, Line, is_claim_under, only};
use super::error::{odd, translate};
use super::lease::{Kept, Lease};
use super::link::Link;
use super::table::Known;
use super::wire::{Answered as _, Header, RangeResponse, Request, TxnRequest};
use crate::backend::{Answer, Place, RenewRequest, Renewed, Standing};
use crate::clock::{Moment, micros};
use crate::error::{Error, Result};
use crate::machine::{Grant, Queue};
use crate::name::Name;
use crate::owner::ClaimId;
use crate::token::Token;

/// How many leases are kept alive over one stream, one after the other.
const KEEPS_MAX: usize = 16;

/// One claim of a batch.
struct Asked {
    request: RenewRequest,
    known: Known,
    /// Whether it is among the claims of this client; else it was found in etcd.
    own: bool,
}

/// The leases of these claims, each once.
fn by_id<'a>(claims: impl Iterator<Item = &'a Asked>) -> HashMap<i64, &'a Arc<Lease>> {
    claims.map(|asked| (asked.known.lease.id, &asked.known.lease)).collect()
}

/// What was read of it.
struct Read {
    header: Header,
    own: Option<Entry>,
}

/// The fronts of the queues that claims of a batch wait in, or why they could not be read.
type Fronts = HashMap<Name, std::result::Result<(Line, Queue), Error>>;

/// How long nothing was answered when a renewal is repeated on another connection.
fn unanswered(ttls: impl Iterator<Item = Duration>) -> Duration {
    let shortest = ttls.min().unwrap_or_default();
    (shortest / 9).max(Duration::from_millis(50))
}

impl Desk {
    /// Renews claims, waiting or holding; one answer for each, in order.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a renewal that arrives late only lengthens a live claim.
    pub(super) async fn renew(self: &Arc<Self>, batch: Vec<RenewRequest>, fresh: bool) -> Result<Answer<Vec<Renewed>>> {
        if batch.is_empty() {
            return Ok(Answer { value: Vec::new(), counted_from: self.clock.now() });
        }
        let begun = self.clock.now();
        // First of all: whatever fails, they were asked for.
        let batch: Vec<_> =
            batch.into_iter().map(|request| (self.ask(&request.name, request.id, begun), request)).collect();
        let link = if fresh {
            self.road.fresh(unanswered(batch.iter().map(|(_, request)| request.ttl))).await?
        } else {
            self.road.link().await?
        };
        let asked = join_all(batch.into_iter().map(|(known, request)| self.asked(known, request))).await;
        let counted_from = self.clock.now();
        let claims: Vec<&Asked> = asked.iter().filter_map(|asked| asked.as_ref().ok()).collect();
        let kept = self.keep_all(&link, &claims).await;
        let (reads, fronts) = tokio::join!(self.read_all(&link, &claims), self.fronts(&claims));
        let mut reads = reads?.into_iter();
        let fronts = &fronts;
        let answers = asked.iter().map(|asked| {
            let read = asked.as_ref().ok().and_then(|_| reads.next());
            let kept = asked.as_ref().ok().and_then(|asked| kept.get(&asked.known.lease.id));
            async move {
                match (asked, kept, read) {
                    (Err(answer), _, _) => answer.clone(),
                    // What one claim needs and does not get is no other's trouble.
                    (Ok(_), _, Some(Err(status))) => Renewed::Unknown(translate(&status).to_string().into()),
                    (Ok(asked), Some(kept), Some(Ok(read))) => {
                        let judged = self.judge(asked, kept, read, fronts, counted_from).await;
                        judged.unwrap_or_else(|error| Renewed::Unknown(error.to_string().into()))
                    }
                    _ => Renewed::Unknown("etcd's answer cannot be understood".into()),
                }
            }
        });
        let answers = join_all(answers).await;
        let leases = by_id(asked.iter().filter_map(|asked| asked.as_ref().ok()));
        leases.into_values().for_each(|lease| self.tidy(lease, counted_from));
        Ok(Answer { value: answers, counted_from })
    }

    /// What is known of a claim that is to be renewed, or what to say of it.
    async fn asked(&self, known: Option<Known>, request: RenewRequest) -> std::result::Result<Asked, Renewed> {
        match known {
            // Nobody asked for it for a ttl.
            Some(known) if known.ending => return Err(Renewed::Gone),
            Some(known) => return Ok(Asked { request, known, own: true }),
            None => {}
        }
        let unknown = |error: crate::Error| Renewed::Unknown(error.to_string().into());
        match self.found(&request).await.map_err(unknown)? {
            Some(known) => {
                // What lives by a shared lease of this client is ended by it, unless it is known.
                let own = known.lease.shared;
                if own && !self.remember(request.id, known.clone()) {
                    return Err(Renewed::Gone);
                }
                Ok(Asked { request, known, own })
            }
            None => Err(self.missing(request.id, None).await.unwrap_or_else(unknown)),
        }
    }

    /// A claim that another client made.
    async fn found(&self, request: &RenewRequest) -> Result<Option<Known>> {
        let line = self.line(&request.name).await?;
        let Some(entry) = line.find(request.id) else { return Ok(None) };
        let (Some(value), Some(part)) = (&entry.value, entry.part(request.id)) else { return Ok(None) };
        Ok(Some(Known {
            name: request.name.clone(),
            key: entry.key.clone(),
            lease: self.leases.of_key(entry.lease, value.lived()),
            created: entry.created,
            number: entry.number_of(part),
            holds: false,
            asked: self.clock.now(),
            ttl: Duration::from_micros(part.ttl),
            sent: true,
            unanswered: false,
            repeated: true,
            elsewhere: true,
            leaving: false,
            ending: false,
        }))
    }

    /// Keeps every lease of the batch alive, each once.
    async fn keep_all(&self, link: &Link, claims: &[&Asked]) -> HashMap<i64, std::result::Result<Kept, Status>> {
        let leases: Vec<i64> = by_id(claims.iter().copied()).into_keys().collect();
        let kept = leases.chunks(KEEPS_MAX).map(|some| async move {
            let kept = self.leases.send(link, some).await;
            let of = |(place, id): (usize, &i64)| {
                let missing = || Status::internal("an answer is missing");
                (*id, kept.as_ref().map_err(Clone::clone).and_then(|kept| kept.get(place).copied().ok_or_else(missing)))
            };
            some.iter().enumerate().map(of).collect::<Vec<_>>()
        });
        let kept: HashMap<_, _> = join_all(kept).await.into_iter().flatten().collect();
        for answer in kept.values() {
            if answer.is_err() {
                // Of several failures one is enough to look for another member.
                drop(self.road.judged(link, answer.clone()));
            }
        }
        kept
    }

    /// Reads every claim of the batch over the link that its lease was kept alive by, in order. An error if none
    /// could be read.
    async fn read_all(&self, link: &Link, claims: &[&Asked]) -> Result<Vec<std::result::Result<Read, Status>>> {
        let pieces = claims.chunks(READS_MAX).map(|piece| self.read_piece(link, piece));
        let all: Vec<_> = join_all(pieces).await.into_iter().flatten().collect();
        match all.first() {
            Some(Err(status)) if all.iter().all(std::result::Result::is_err) => Err(translate(status)),
            _ => Ok(all),
        }
    }

    async fn read_piece(&self, link: &Link, piece: &[&Asked]) -> Vec<std::result::Result<Read, Status>> {
        match self.read(link, piece).await {
            Ok(reads) => reads.into_iter().map(Ok).collect(),
            Err(_) if piece.len() > 1 && !link.is_left() => {
                // It is because of one of them, such as a value that is too large to be read. Which one, each finds
                // out by itself.
                let each = piece.iter().map(|asked| async move {
                    let read = self.read(link, &[asked]).await?.pop();
                    read.ok_or_else(|| Status::internal("an answer is missing"))
                });
                join_all(each).await
            }
            Err(status) => piece.iter().map(|_| Err(status.clone())).collect(),
        }
    }

    async fn read(&self, link: &Link, piece: &[&Asked]) -> std::result::Result<Vec<Read>, Status> {
        let success = piece.iter().map(|asked| Request::Range(only(&asked.known.key)).into()).collect();
        let found = link.txn(TxnRequest { success, ..TxnRequest::default() }).await;
        let found = found.inspect_err(|status| drop(self.road.judged::<()>(link, Err(status.clone()))))?;
        let header = found.header();
        let mut ranges = found.into_ranges();
        let read = |asked: &&Asked| {
            let own: RangeResponse = ranges.next().ok_or_else(|| Status::internal("an answer is missing"))?;
            let under = self.keys.under(&asked.known.name);
            let own = own.kvs.into_iter().find(|kv| is_claim_under(&under, kv)).map(Entry::of);
            Ok(Read { header, own })
        };
        piece.iter().map(read).collect()
    }

    /// The fronts of the queues in which claims wait: each once, and as they are known where they are watched.
    async fn fronts(&self, claims: &[&Asked]) -> Fronts {
        let needs = |asked: &&&Asked| !asked.known.holds || asked.request.number.is_some();
        let waits = claims.iter().filter(needs).map(|asked| &asked.known.name);
        let names: HashSet<&Name> = waits.collect();
        let fronts = names.into_iter().map(|name| async move {
            // The queue is made once for all that wait in it.
            let front = self.known_front(name).await.map(|line| {
                let queue = line.queue(self.wall());
                (line, queue)
            });
            (name.clone(), front)
        });
        join_all(fronts).await.into_iter().collect()
    }

    async fn known_front(&self, name: &Name) -> Result<Line> {
        if let Some(known) = self.ear.front(name) {
            return Ok(known);
        }
        let line = self.fresh_front(name).await?;
        self.telling(name, line).await
    }

    async fn judge(
        self: &Arc<Self>,
        asked: &Asked,
        kept: &std::result::Result<Kept, Status>,
        read: Read,
        fronts: &Fronts,
        now: Moment,
    ) -> Result<Renewed> {
        let (id, known) = (asked.request.id, &asked.known);
        let kept = match kept {
            Ok(kept) => kept,
            Err(status) => return Ok(Renewed::Unknown(translate(status).to_string().into())),
        };
        // It has joined what its owner holds, was claimed anew or given up, while this was under way.
        let changed = || Ok(Renewed::Unknown("the claim has changed meanwhile".into()));
        let same = |now: &mut Known| now.lease.id == known.lease.id;
        if asked.own && !self.vouch(id, &known.key, known.created, same).unwrap_or(false) {
            return changed();
        }
        if kept.seconds <= 0 && read.own.as_ref().is_some_and(|own| own.lease == known.lease.id) {
            // A member that lags: the cluster has the key, and so the lease.
            return Ok(Renewed::Unknown("etcd did not know the lease for a moment".into()));
        }
        if kept.seconds <= 0 {
            // The claim cannot outlive it: lost, now.
            let gone = self.missing(id, Some(known.number)).await?;
            self.forget_seen(id, known);
            self.lose(&known.lease);
            return Ok(gone);
        }
        let own = read.own.filter(|own| known.created == 0 || own.created == known.created);
        let Some((own, part)) = own.as_ref().and_then(|own| Some((own, own.part(id)?))) else {
            let gone = self.missing(id, Some(known.number).filter(|number| *number != 0)).await?;
            if asked.own && !self.forget_seen(id, known) {
                return changed();
            }
            return Ok(gone);
        };
        let number = own.number_of(part);
        if !asked.request.means(number) {
            let front = fronts.get(&known.name).ok_or_else(odd)?;
            let (_, queue) = front.as_ref().map_err(Error::again)?;
            let ttl = Duration::from_micros(part.ttl);
            let there = queue.standing(id, self.wall()).filter(|standing| standing.number == number);
            let state = there.map_or_else(|| Err(queue.place_at_the_end(self.wall())), |standing| standing.state);
            return Ok(Renewed::Stands(Standing { number, ttl, state }));
        }
        if own.lease != known.lease.id {
            // Bound to another lease meanwhile, which lives longer: that one is to be kept alive.
            let lease = self.leases.of_key(own.lease, Duration::from_micros(part.ttl));
            self.update(id, &own.key, |known| known.lease = lease);
            return Ok(Renewed::Unknown("the claim lives by another lease now".into()));
        }
        if !kept.counts(read.header) {
            return Ok(Renewed::Unknown("the leader of etcd changed meanwhile".into()));
        }
        let renewed = self.vouch(id, &known.key, known.created, |known| {
            known.asked = known.asked.max(now);
            known.created = own.created;
            known.number = number;
        });
        if asked.own && renewed.is_none() {
            return changed();
        }
        kept.count(&known.lease);
        let mut ttl = Duration::from_micros(part.ttl).min(known.lease.ttl());
        let alone = own.value.as_ref().is_some_and(|value| value.claims.len() == 1);
        if micros(asked.request.ttl) > part.ttl
            && alone
            && self.lengthen(&known.name, id, own, asked.request.ttl).await?
        {
            // Its new lease was made after this renewal began, so it lives at least so long from then on.
            ttl = asked.request.ttl;
        }
        let state = if known.holds {
            let token = Token(super::entry::revision(own.created));
            Ok(Grant { token, block_end: token, at: part.since })
        } else {
            let front = fronts.get(&known.name).ok_or_else(odd)?;
            let (line, queue) = front.as_ref().map_err(Error::again)?;
            match self.place(asked, own, (line, queue))? {
                Some(state) => state,
                None => return Ok(Renewed::Unknown("the claim is there by another key as well".into())),
            }
        };
        Ok(Renewed::Stands(Standing { number, ttl, state }))
    }

    /// How a claim stands that waited when it was last looked at. None if that is not settled: it is looked at again.
    fn place(
        self: &Arc<Self>,
        asked: &Asked,
        own: &Entry,
        (line, queue): (&Line, &Queue),
    ) -> Result<Option<std::result::Result<Grant, Place>>> {
        let id = asked.request.id;
        let stood = self.standing(&asked.known.name, id, own, (line, queue))?;
        let joins = line.outer_of(own, id, queue).is_some() && self.known(&asked.known.name, id).is_some();
        let settled = match stood {
            Stood::Here(standing) if !joins => {
                if standing.state.is_ok() {
                    self.takes_hold(id, own);
                }
                return Ok(Some(standing.state));
            }
            // Its owner holds by now: it joins what holds, and is told.
            Stood::Here(_) => Some(Err(line.queue_before(own.created, self.wall()).place_at_the_end(self.wall()))),
            Stood::Elsewhere(_) => None,
        };
        self.look_again_soon(id);
        Ok(settled)
    }

    /// What to say of a claim that is not there.
    async fn missing(&self, id: ClaimId, number: Option<u64>) -> Result<Renewed> {
        let note = self.note(id, number).await?;
        Ok(note.map_or(Renewed::Gone, |note| Renewed::Broken { by: note.by, reason: note.reason }))
    }
}
