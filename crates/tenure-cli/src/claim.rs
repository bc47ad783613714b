//! `acquire`, `renew`, `release`: locks in the hands of a script.

use std::time::{Duration, Instant};

use serde::Serialize;
use tenure::{Error, ErrorKind, Lease, Loss, Name, Owner, Tenure, Token};

use crate::args::{Acquire, Release, Renew};
use crate::duration::ms;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::label;
use crate::output;
use crate::signals::Signals;
use crate::store::Store;
use crate::wait::{FAREWELL, Unfinished, Wait, give_back, give_up, interrupted};
use crate::waiting::{self, Waiting};

/// The ttl of `acquire` if none is asked for.
const TTL_DEFAULT: Duration = Duration::from_secs(30);

/// What `acquire` and `renew` print.
#[derive(Serialize)]
struct Claim<'a> {
    name: &'a Name,
    owner: &'a Owner,
    state: State,
    token: Option<Token>,
    expires_in_ms: u64,
}

/// How a claim stands. Only one that is held is a lock.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Held,
    Waiting,
}

#[derive(Serialize)]
struct Released {
    released: bool,
}

pub(crate) async fn acquire(args: Acquire, store: Store, json: bool) -> Result<Exit, Failure> {
    let name = Name::new(&args.name)?;
    let owner = args.owner.map_or_else(|| Ok(Owner::random()), Owner::new)?;
    let wait = Wait::of(args.waiting.wait, args.waiting.no_wait);
    store.warn_if_alone(json);
    let mut signals = Signals::listen()?;
    let started = Instant::now();
    let label = args.label.unwrap_or_else(label::of_caller);
    let tenure = tokio::select! {
        connected = store.connect(&label, wait, json) => connected?,
        signal = signals.next() => return Err(interrupted(name.as_str(), signal)),
    };
    let ttl = args.ttl.unwrap_or_else(|| tenure.capabilities().nearest_ttl(TTL_DEFAULT));
    let session = tenure.session_as(owner.clone());
    let mut lock = args.sharing.lock(&session, &name).ttl(ttl).no_renewal().repeatable();
    if let Some(replicas) = args.replication.min_replicas {
        lock = lock.min_replicas(replicas);
    }
    let acquiring = wait.acquire(started, &tenure, &name, &lock);
    let waiting = Waiting { tenure: &tenure, name: &name, owner: &owner, since: started, json };
    let acquired = tokio::select! {
        acquired = waiting::shown(waiting, acquiring) => acquired.map_err(Ok),
        signal = signals.next() => Err(Err(signal)),
    };
    let guard = match acquired {
        Ok(guard) => guard,
        Err(Ok(error)) => {
            give_back(&tenure, &name, &owner, &error).await;
            return Err(give_up(&tenure, name.as_str(), &mut signals, Unfinished::Failed(error)).await);
        }
        Err(Err(signal)) => {
            return Err(give_up(&tenure, name.as_str(), &mut signals, Unfinished::Interrupted(signal)).await);
        }
    };
    let claim = Claim {
        name: guard.name(),
        owner: guard.owner(),
        state: State::Held,
        token: guard.token(),
        expires_in_ms: ms(guard.remaining()),
    };
    let line = output::json_line(&claim)?;
    // Told first, left second: a claim that could not be told of is nobody's, and ends with the guard.
    if let Err(failure) = output::deliver(line.as_bytes()) {
        drop(guard);
        let _ = signals.allow(FAREWELL, tenure.close()).await;
        return Err(failure);
    }
    guard.leave();
    // The claim lives on; whatever else of this process would be left at the store does not.
    let _ = signals.allow(FAREWELL, tenure.close()).await;
    Ok(Exit::Done)
}

pub(crate) async fn renew(args: Renew, store: Store, json: bool) -> Result<Exit, Failure> {
    let name = Name::new(&args.name)?;
    let owner = Owner::new(&args.owner)?;
    let renew = async |tenure: &Tenure| {
        let renewed = store.ask(async { Ok(tenure.renew_as(name.as_str(), &owner, args.ttl).await) }).await?;
        match renewed {
            Ok(lease) => told(&lease),
            Err(error) if is_gone(&error) && holds_otherwise(&store, tenure, &name, &owner).await => {
                Err(not_a_scripts(Exit::Lost, &name, &owner))
            }
            Err(error) => Err(error.into()),
        }
    };
    store.with(&label::of_caller(), json, renew).await
}

/// Tells how a claim stands that was renewed.
fn told(lease: &Lease) -> Result<Exit, Failure> {
    let state = if lease.token.is_some() { State::Held } else { State::Waiting };
    output::print_json(&Claim {
        name: &lease.name,
        owner: &lease.owner,
        state,
        // Where a store has no tokens, this is told as none.
        token: lease.token.filter(|token| token.0 > 0),
        expires_in_ms: ms(lease.expires_in),
    })?;
    match state {
        State::Held => Ok(Exit::Done),
        State::Waiting => Err(Failure::new(
            Exit::NotAcquired,
            format!(
                "{}: the claim of {} was renewed and still waits: somebody else holds the lock",
                lease.name, lease.owner
            ),
        )),
    }
}

pub(crate) async fn release(args: Release, store: Store, json: bool) -> Result<Exit, Failure> {
    let name = Name::new(&args.name)?;
    let owner = Owner::new(&args.owner)?;
    let release = async |tenure: &Tenure| {
        let released = store.ask(tenure.release_as(name.as_str(), &owner)).await?;
        if json {
            output::print_json(&Released { released })?;
        }
        match released {
            true => Ok(Exit::Done),
            false if json => Ok(Exit::Nothing),
            false if holds_otherwise(&store, tenure, &name, &owner).await => {
                Err(not_a_scripts(Exit::Nothing, &name, &owner))
            }
            false => Err(Failure::new(Exit::Nothing, format!("{name}: the owner {owner} holds nothing there"))),
        }
    };
    store.with(&label::of_caller(), json, release).await
}

fn is_gone(error: &Error) -> bool {
    error.kind() == ErrorKind::Lost && matches!(error.loss(), Some(Loss::Gone))
}

/// Whether the owner has a claim that is not of `acquire`: a run's, or a program's. For the message alone.
async fn holds_otherwise(store: &Store, tenure: &Tenure, name: &Name, owner: &Owner) -> bool {
    let Ok(view) = store.ask(tenure.inspect(name.as_str())).await else { return false };
    let owner = tenure.shown_owner(name, owner);
    let holders = view.holders.iter().map(|holder| &holder.owner);
    holders.chain(view.waiters.iter().map(|waiter| &waiter.owner)).flatten().any(|other| *other == owner)
}

fn not_a_scripts(exit: Exit, name: &Name, owner: &Owner) -> Failure {
    let message = format!(
        "{name}: the owner {owner} holds it through `tenure run` (or a program), which renews and releases it itself"
    );
    Failure::new(exit, message)
}
