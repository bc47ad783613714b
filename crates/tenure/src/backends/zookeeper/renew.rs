//! Renewing: one write for each session, and a look at each claim.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use zookeeper_client::Error as Refused;

use super::desk::{Desk, pause};
use super::error::of_request;
use super::look::{Fresh, Judged};
use super::mind;
use super::pulse::Trusted;
use super::record::Record;
use super::session::{Answered, Session};
use super::stand::Missing;
use super::table::{Entry, Placed};
use crate::backend::{Answer, Place, RenewRequest, Renewed};
use crate::clock::Moment;
use crate::error::{ErrorKind, Result};
use crate::machine::{ClaimRequest, Grant, Standing};
use crate::name::Name;
use crate::owner::ClaimId;
use crate::token::Token;

/// How many looks are under way at a time.
const LOOKS_MAX: usize = 256;
/// A write is waited for as long as the watchdog waits for an answer: a part of the ttl, and at least so long.
const PATIENCE_PART: u32 = 9;
const PATIENCE_MIN: Duration = Duration::from_millis(50);

/// # Cancel safety
///
/// Cancel safe: a renewal that arrives late only lengthens a live session.
pub(super) async fn renew(desk: Arc<Desk>, batch: Vec<RenewRequest>) -> Result<Answer<Vec<Renewed>>> {
    let now = desk.clock.now();
    let (mut sessions, own) = desk.asked_for(&batch);
    let rest = rest_of(&sessions, now);
    if !rest.is_zero() {
        // Whoever closes the client meanwhile does not wait for this.
        drop(sessions);
        pause(rest).await;
        sessions = desk.asked_for(&batch).0;
    }
    // First the writes: what is read behind them is no older.
    let beats = desk.beat_all(sessions).await;
    let mut value = Vec::with_capacity(batch.len());
    // What was not answered for has no part in what the others count from.
    let mut counted = Vec::with_capacity(batch.len());
    let mut failure = None;
    for some in batch.chunks(LOOKS_MAX) {
        let looks = some.iter().map(|request| desk.renewed(request, &own, &beats));
        for looked in join_all(looks).await {
            let (renewed, from) = looked.unwrap_or_else(|error| {
                let error = of_request(error);
                let why = error.to_string();
                failure.get_or_insert(error);
                unlike(Renewed::Unknown(why.into()))
            });
            value.push(renewed);
            counted.extend(from);
        }
    }
    // One session that fails says nothing of the claims of others: each claim is unknown by itself then.
    if let Some(error) = failure
        && value.iter().all(|renewed| matches!(renewed, Renewed::Unknown(_)))
        && (error.kind() == ErrorKind::Denied || !desk.is_connected())
    {
        return Err(error);
    }
    let counted_from = counted.into_iter().min().unwrap_or(now);
    Ok(Answer { value, counted_from })
}

/// The answer for one claim; and if it stands, what it counts from. That is of before the look which showed it
/// standing: what is proven later may be of a time when somebody else had it.
type Looked = (Renewed, Option<Moment>);

/// The answer for a claim that does not stand.
fn unlike(renewed: Renewed) -> Looked {
    (renewed, None)
}

/// The sessions of a batch, by their ids.
type Sessions = HashMap<i64, Arc<Session>>;

/// Claims of this client that were asked for: where they were then.
type Own = HashMap<ClaimId, (Weak<Session>, Placed)>;

/// How long a batch waits before it writes: until one of its sessions needs no rest any more.
fn rest_of(sessions: &Sessions, now: Moment) -> Duration {
    sessions.values().map(|session| session.rest(now)).min().unwrap_or_default()
}

/// How long a batch waits for the writes of its sessions, of which the shortest timeout is this.
fn patience(shortest: Duration) -> Duration {
    (shortest / PATIENCE_PART).max(PATIENCE_MIN)
}

impl Desk {
    /// The claims of a batch that are this client's, and their sessions.
    fn asked_for(&self, batch: &[RenewRequest]) -> (Sessions, Own) {
        let now = self.clock.now();
        let (mut sessions, mut own) = (Sessions::new(), Own::new());
        for request in batch {
            let entry = self.table.change(request.id, |entry| {
                // From now on, so that it is not ended while it is asked for.
                let is_meant = entry.placed.as_ref().is_none_or(|placed| request.means(placed.number));
                let ttl = if is_meant { entry.ttl.max(request.ttl) } else { Duration::ZERO };
                entry.expires = entry.expires.max(now + ttl);
                entry.clone()
            });
            let Some(entry) = entry else { continue };
            let Some(placed) = entry.placed else { continue };
            if !entry.ending && !entry.session.has_ended() {
                sessions.insert(entry.session.id, entry.session.clone());
            }
            own.insert(request.id, (Arc::downgrade(&entry.session), placed));
        }
        (sessions, own)
    }

    /// Keeps sessions alive, each by a write of its own. One that is not answered soon keeps nobody else waiting.
    async fn beat_all(&self, sessions: Sessions) -> HashMap<i64, Answered<Moment>> {
        let shortest = sessions.values().map(|session| session.timeout).min().unwrap_or_default();
        let beats = sessions
            .values()
            .map(|session| async { (session.id, session.beat_within(&self.runtime, patience(shortest)).await) });
        join_all(beats).await.into_iter().collect()
    }

    async fn renewed(
        self: &Arc<Self>,
        request: &RenewRequest,
        own: &Own,
        beats: &HashMap<i64, Answered<Moment>>,
    ) -> Answered<Looked> {
        let RenewRequest { id, ttl, .. } = request;
        let entry = self.table.get(*id);
        let Some((mut entry, placed)) = entry.and_then(|entry| entry.placed.clone().map(|placed| (entry, placed)))
        else {
            return match own.get(id).map(|(session, placed)| (session.upgrade(), placed)) {
                // It has ended since it was asked for, as a rule by its release: nothing is begun for it.
                Some((Some(session), placed)) if !session.has_ended() => self.lost(request, &session, placed).await,
                Some(_) => Ok(unlike(Renewed::Gone)),
                None => self.renew_strange(request).await,
            };
        };
        if entry.session.has_ended() {
            // Whatever was entered after the claims of that session were removed goes now.
            self.session_ended(&entry.session);
            return Ok(unlike(Renewed::Gone));
        }
        if entry.ending {
            return Ok(unlike(Renewed::Gone));
        }
        match beats.get(&entry.session.id) {
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error.clone()),
            // Placed while the others were asked for.
            None => {
                entry.session.beat_within(&self.runtime, patience(entry.session.timeout)).await?;
            }
        }
        if entry.session.doubt().is_some() {
            // It would count from before it reconnected, and all others that are asked for with it as well.
            let why = "it is not known yet whether its new server keeps the session as long";
            return Ok(unlike(Renewed::Unknown(why.into())));
        }
        if *ttl > entry.ttl && request.means(placed.number) {
            match self.lengthen(*id, &entry, *ttl).await? {
                Some(longer) => entry = longer,
                None => return self.lost(request, &entry.session, &placed).await,
            }
        }
        let counted = entry.session.counted();
        let Some((standing, _)) = self.stand(*id, &entry).await? else {
            return match self.table.get(*id) {
                // On its way to another node, or there by now: asked for again soon.
                Some(present) if present.placed != entry.placed || present.moving > 0 => Err(Refused::Timeout),
                _ => {
                    let placed = entry.placed.clone().unwrap_or(placed);
                    self.lost(request, &entry.session, &placed).await
                }
            };
        };
        if let Ok(grant) = standing.state {
            // The answer tells as well, unless nobody waits for it any more.
            self.tell_granted(*id, standing.number, grant);
        }
        mind::start(self, *id);
        Ok((Renewed::Stands(standing), Some(counted)))
    }

    /// A claim of this client is not at its node.
    async fn lost(self: &Arc<Self>, request: &RenewRequest, session: &Session, placed: &Placed) -> Answered<Looked> {
        let missing = self.missing(session, &request.name, request.id, Some(placed.number)).await?;
        self.ended(request.id, placed, &missing);
        match missing {
            Missing::Gone => Ok(unlike(Renewed::Gone)),
            Missing::Broken(note) => Ok(unlike(Renewed::Broken { by: note.by, reason: note.reason })),
            Missing::Moved => self.renew_strange(request).await,
        }
    }

    /// A claim that another process made, and that is to live on with this one: it is moved into a session of this one.
    async fn renew_strange(self: &Arc<Self>, request: &RenewRequest) -> Answered<Looked> {
        let RenewRequest { name, id, ttl, .. } = request;
        let session = self.usual().await.map_err(|_| Refused::ConnectionLoss)?;
        for _ in 0..4 {
            let found = self.find(&session, name, *id, Fresh::Yes).await?;
            let living = found.into_iter().find(|(_, known)| !self.is_of_the_past(known.session));
            let Some((node, known)) = living else {
                return Ok(unlike(match self.note(&session, *id).await? {
                    Some(note) => Renewed::Broken { by: note.by, reason: note.reason },
                    None => Renewed::Gone,
                }));
            };
            let Some(mut record) = known.record.clone() else { return Ok(unlike(Renewed::Gone)) };
            if !request.means(known.number()) {
                match self.stands_elsewhere(&session, name, &node.name, &record).await? {
                    Some(state) => {
                        let (number, ttl) = (known.number(), record.ttl());
                        return Ok(unlike(Renewed::Stands(Standing { number, ttl, state })));
                    }
                    None => continue,
                }
            }
            let ttl = record.ttl().max(*ttl);
            let timeout = self.timeout_of(ttl).map_or(record.ttl(), |_| ttl);
            let trusted = Trusted { seen: self.clock.now(), ttl: record.ttl() };
            let target = self.session_outliving(*id, timeout, trusted).await.map_err(|_| Refused::ConnectionLoss)?;
            (record.token, record.number) = (Some(known.token()), Some(known.number()));
            let old = (&node, known.version);
            record.ttl_us = crate::clock::micros(timeout);
            let Some(placed) = self.transfer(&target, name, old, record.clone(), trusted).await? else { continue };
            let entry = Entry {
                name: name.clone(),
                request: Arc::new(request_of(&record)),
                ttl: timeout,
                session: target,
                placed: Some(placed),
                grant: None,
                told: false,
                expires: self.clock.now() + timeout,
                ending: false,
                moving: 0,
                minded: false,
                ahead: None,
                gate: Arc::default(),
            };
            let (entry, _) = self.table.enter(*id, || entry);
            let counted = entry.session.beat_within(&self.runtime, patience(entry.session.timeout)).await?;
            let stands = self.stand(*id, &entry).await?;
            if let Some(Ok(_)) = stands.as_ref().map(|(standing, _)| &standing.state) {
                // The answer tells: whoever asks for it knows that it holds.
                self.table.change(*id, |entry| entry.told = true);
            }
            mind::start(self, *id);
            return Ok(match stands {
                Some((standing, _)) => (Renewed::Stands(standing), Some(counted)),
                None => unlike(Renewed::Gone),
            });
        }
        Err(Refused::Timeout)
    }

    /// How a claim stands that is not this client's, and stays where it is. None if its node is not there any more.
    async fn stands_elsewhere(
        &self,
        session: &Session,
        name: &Name,
        node: &str,
        record: &Record,
    ) -> Answered<Option<std::result::Result<Grant, Place>>> {
        let listing = self.listing(session, name, Fresh::Yes).await?;
        let Some(place) = listing.place_of(node) else { return Ok(None) };
        let judged = self.judge(session, name, (&listing, place), &request_of(record), false).await?;
        Ok(match judged {
            Judged::Changed | Judged::Refused(_) => None,
            Judged::Waits(place, _) => Some(Err(place)),
            Judged::Holds | Judged::Within(..) => {
                let token = Token(record.token.unwrap_or_default());
                Some(Ok(Grant { token, block_end: token, at: self.wall() }))
            }
        })
    }
}

/// What a claim was asked for with, as far as it says.
fn request_of(record: &Record) -> ClaimRequest {
    ClaimRequest {
        id: record.id,
        owner: record.owner.clone(),
        label: record.label.clone(),
        shape: record.shape,
        ttl: record.ttl(),
        queue: true,
        block: 1,
        strict: false,
        inbox: "".into(),
        within: record.within.clone(),
        reenter: None,
        solo: record.solo,
        attempt: record.attempt,
        presumed: Duration::ZERO,
    }
}
