//! `run`: a command under a lock.
//!
//! Three processes. `tenure run` holds the lock and talks to the store ([`supervise`]). The command runs in a process
//! group of its own. Between them stands a small guardian ([`mod@guardian`]) that knows until when the lease is good
//! and ends all that the command started ([`tree`]) before that, whatever becomes of `tenure run`: killed, stopped, or
//! hanging on the store. They talk over a socket pair ([`control`]).

mod control;
mod guardian;
mod hold;
mod holds;
mod job;
mod launch;
mod lead;
mod leash;
mod link;
mod orphan;
mod plan;
mod process;
mod purpose;
mod share;
mod supervise;
mod terminal;
mod tree;

use std::time::Instant;

use tenure::{Ended, ErrorKind, Name, Recent, Tenure};

pub(crate) use guardian::main as guardian;
pub(crate) use hold::Hold;
pub(crate) use lead::lead;
pub(crate) use plan::Plan;

use crate::duration;
use crate::exit::Exit;
use crate::failure::{Failure, tell};
use crate::signals::Signals;
use crate::wait::{Unfinished, give_back, give_up, interrupted};
use crate::waiting::{self, Waiting};
use holds::Holds;
use link::Link;
use purpose::Purpose;
use share::Share;
use supervise::Supervision;

/// The hidden command that makes this program a guardian.
pub(crate) const GUARD_COMMAND: &str = "__guard";

/// Runs the command under the lock; its exit code is the command's unless the lease is lost.
pub(crate) async fn run(mut plan: Plan) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    // Should the guardian be killed, what it guarded is ours.
    tree::adopt_orphans();
    // The guardian starts while the store is being reached, so it costs no time.
    let mut link = Link::start_guardian(&plan.command)?;
    let outcome = run_guarded(&mut plan, &mut link, &mut signals).await;
    link.close().await;
    if let Some(file) = &plan.metrics {
        file.write(plan.json);
    }
    outcome
}

async fn run_guarded(plan: &mut Plan, link: &mut Link, signals: &mut Signals) -> Result<Exit, Failure> {
    terminal::outlive_background()?;
    if matches!(plan.purpose, Purpose::Once(_)) {
        plan.refuse_nested()?;
    }
    let started = Instant::now();
    let tenure = tokio::select! {
        connected = plan.store.connect(&plan.label, plan.wait, plan.json) => connected?,
        signal = signals.next() => return Err(interrupted(&plan.title(), signal)),
    };
    plan.fit(&tenure.capabilities())?;
    let acquired = tokio::select! {
        acquired = acquire_all(plan, &tenure, started) => acquired.map_err(Unfinished::Failed),
        signal = signals.next() => Err(Unfinished::Interrupted(signal)),
    };
    let outcome = match acquired {
        Ok(holds) => {
            for hold in holds.iter() {
                let token = hold.token().map(|token| format!(", token {token}")).unwrap_or_default();
                tell(format_args!("{}: acquired after {}{token}", hold.name(), duration::show(started.elapsed())));
            }
            if plan.names.iter().any(|name| plan.held.of(&plan.store.shown(), name).is_some()) {
                plan.re_entered(holds.remaining());
            }
            Supervision::new(plan, &tenure, holds, link, signals)?.run().await
        }
        Err(unfinished) => Err(give_up(&tenure, &plan.title(), signals, unfinished).await),
    };
    tell_recent(&tenure);
    outcome
}

/// Tells why it took so long, or did not work, with `--verbose`.
fn tell_recent(tenure: &Tenure) {
    let recent = tenure.recent();
    let is_news = |recent: &&Recent| recent.behind.is_some() || recent.ended != Ended::Released;
    for recent in recent.iter().filter(is_news) {
        tell(recent);
    }
}

/// Acquires all names, one after another; what was taken is given back if the rest cannot be.
async fn acquire_all(plan: &Plan, tenure: &Tenure, started: Instant) -> Result<Holds, Failure> {
    if let Purpose::Once(job) = &plan.purpose {
        return Ok(Holds::of(vec![job::begin(plan, job, tenure, started).await?]));
    }
    let mut holds = Vec::new();
    for name in &plan.names {
        holds.push(acquire(plan, name, tenure, started).await?);
    }
    // One may have been lost while another was waited for.
    match holds.iter().find(|hold| hold.remaining().is_zero()) {
        Some(lost) => {
            let message = format!("{}: the lease was lost while the others were waited for", lost.name());
            Err(Failure::new(Exit::Lost, message + &lost.last_failure()).of(lost.name()))
        }
        None => Ok(Holds::of(holds)),
    }
}

/// Acquires; within a run of the same name by re-entering that, or by sharing its claim.
async fn acquire(plan: &Plan, name: &Name, tenure: &Tenure, started: Instant) -> Result<Hold, Failure> {
    let sharing = share::is_shared_on(tenure);
    if let Some(outer) = plan.held.of(&plan.store.shown(), name) {
        // If the outer run no longer holds it there is nothing to deadlock with, so this is a run like any other.
        if sharing {
            if plan.can_share(name, &tenure.capabilities())?
                && let Some(share) = plan.store.ask(Share::take(tenure, outer, plan.ttl)).await?
            {
                return Ok(Hold::Shared(share));
            }
        } else if let Some(token) = outer.token {
            let lock = plan.lock(&tenure.session_as(outer.owner.clone()), name).reenter(token);
            match plan.wait.acquire(started, tenure, name, &lock).await {
                Err(failure) if failure.kind() == Some(ErrorKind::NotHeld) => {}
                outcome => return Ok(Hold::Own(outcome?)),
            }
        }
    }
    let session = tenure.session();
    let mut lock = plan.lock(&session, name).within(plan.held.owners());
    if sharing {
        // No sessions there: the claim's id follows from owner and name, so that a nested run can renew it.
        lock = lock.repeatable();
    }
    let acquiring = plan.wait.acquire(started, tenure, name, &lock);
    let (owner, json) = (session.owner(), plan.json);
    match waiting::shown(Waiting { tenure, name, owner, since: started, json }, acquiring).await {
        Ok(guard) => Ok(Hold::Own(guard)),
        Err(failure) => {
            if sharing {
                give_back(tenure, name, session.owner(), &failure).await;
            }
            Err(failure)
        }
    }
}
