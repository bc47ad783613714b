//! `acquire`, `renew`, `release`: locks in the hands of a script.

use std::time::{Duration, Instant};

use serde::Serialize;
use tenure::{Lease, Name, Owner, Tenure, Token};

use crate::args::{Acquire, Release, Renew};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::label;
use crate::output;
use crate::signals::Signals;
use crate::store::Store;
use crate::wait::{Wait, interrupted};
use crate::waiting;

/// What `acquire` and `renew` print.
#[derive(Serialize)]
struct Claim<'a> {
    name: &'a Name,
    owner: &'a Owner,
    token: Option<Token>,
    expires_in_ms: u64,
}

#[derive(Serialize)]
struct Released {
    released: bool,
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) async fn acquire(args: Acquire, store: Store) -> Result<Exit, Failure> {
    let name = Name::new(&args.name)?;
    let owner = args.owner.map_or_else(|| Ok(Owner::random()), Owner::new)?;
    let wait = Wait::of(args.waiting.wait, args.waiting.no_wait);
    let mut signals = Signals::listen()?;
    let started = Instant::now();
    let label = args.label.unwrap_or_else(label::of_caller);
    let tenure = tokio::select! {
        connected = store.connect(&label, wait) => connected?,
        signal = signals.next() => return Err(interrupted(&name, signal)),
    };
    let lock = tenure.session_as(owner.clone()).lock(name.as_str()).ttl(args.ttl).no_renewal().repeatable();
    let acquiring = wait.acquire(started, &tenure, &name, &lock);
    let guard = tokio::select! {
        acquired = waiting::shown(&tenure, &name, &owner, acquiring) => acquired?,
        signal = signals.next() => return Err(give_up(&tenure, &name, signal).await),
    };
    let claim =
        Claim { name: guard.name(), owner: guard.owner(), token: guard.token(), expires_in_ms: ms(guard.remaining()) };
    let line = output::json_line(&claim)?;
    // Told first, left second: a claim that could not be told of is nobody's, and ends with the guard.
    if let Err(failure) = output::deliver(line.as_bytes()) {
        drop(guard);
        tenure.close().await?;
        return Err(failure);
    }
    guard.leave();
    Ok(Exit::Done)
}

/// Ends what a dropped attempt left in the store, then says why.
async fn give_up(tenure: &Tenure, name: &Name, signal: i32) -> Failure {
    let _ = tokio::time::timeout(crate::store::PATIENCE, tenure.close()).await;
    interrupted(name, signal)
}

pub(crate) async fn renew(args: Renew, store: Store) -> Result<Exit, Failure> {
    let name = Name::new(&args.name)?;
    let owner = Owner::new(&args.owner)?;
    let tenure = store.connect(&label::of_caller(), Wait::Forever).await?;
    let lease: Lease = store.ask(tenure.renew_as(name.as_str(), &owner, args.ttl)).await?;
    output::print_json(&Claim {
        name: &lease.name,
        owner: &lease.owner,
        token: lease.token,
        expires_in_ms: ms(lease.expires_in),
    })?;
    Ok(Exit::Done)
}

pub(crate) async fn release(args: Release, store: Store, json: bool) -> Result<Exit, Failure> {
    let name = Name::new(&args.name)?;
    let owner = Owner::new(&args.owner)?;
    let tenure = store.connect(&label::of_caller(), Wait::Forever).await?;
    let released = store.ask(tenure.release_as(name.as_str(), &owner)).await?;
    if json {
        output::print_json(&Released { released })?;
    }
    match released {
        true => Ok(Exit::Done),
        false if json => Ok(Exit::Nothing),
        false => Err(Failure::new(Exit::Nothing, format!("{name}: the owner {owner} holds nothing there"))),
    }
}
