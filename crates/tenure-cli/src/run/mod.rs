//! `run`: a command under a lock.
//!
//! Three processes. `tenure run` holds the lock and talks to the store ([`supervise`]). The command runs in a process
//! group of its own. Between them stands a small guardian ([`mod@guardian`]) that knows until when the lease is good
//! and ends all that the command started ([`tree`]) before that, whatever becomes of `tenure run`: killed, stopped, or
//! hanging on the store. They talk over a socket pair ([`control`]).

mod control;
mod guardian;
mod hold;
mod launch;
mod leash;
mod link;
mod orphan;
mod plan;
mod process;
mod share;
mod supervise;
mod terminal;
mod tree;

use std::time::Instant;

use tenure::{ErrorKind, Tenure};

pub(crate) use guardian::main as guardian;
pub(crate) use hold::Hold;
pub(crate) use plan::Plan;

use crate::duration;
use crate::exit::Exit;
use crate::failure::{Failure, tell};
use crate::signals::Signals;
use crate::wait::{Unfinished, give_back, give_up, interrupted};
use crate::waiting::{self, Waiting};
use link::Link;
use share::Share;
use supervise::Supervision;

/// The hidden command that makes this program a guardian.
pub(crate) const GUARD_COMMAND: &str = "__guard";

/// Runs the command under the lock; its exit code is the command's unless the lease is lost.
pub(crate) async fn run(mut plan: Plan) -> Result<Exit, Failure> {
    let signals = Signals::listen()?;
    // Should the guardian be killed, what it guarded is ours.
    tree::adopt_orphans();
    // The guardian starts while the store is being reached, so it costs no time.
    let mut link = Link::start_guardian(&plan.command)?;
    let outcome = run_guarded(&mut plan, &mut link, signals).await;
    link.close().await;
    outcome
}

async fn run_guarded(plan: &mut Plan, link: &mut Link, mut signals: Signals) -> Result<Exit, Failure> {
    terminal::outlive_background()?;
    let started = Instant::now();
    let tenure = tokio::select! {
        connected = plan.store.connect(&plan.label, plan.wait, plan.json) => connected?,
        signal = signals.next() => return Err(interrupted(&plan.name, signal)),
    };
    plan.fit(&tenure.capabilities())?;
    let acquired = tokio::select! {
        acquired = acquire(plan, &tenure, started) => acquired.map_err(Unfinished::Failed),
        signal = signals.next() => Err(Unfinished::Interrupted(signal)),
    };
    match acquired {
        Ok(hold) => {
            let token = hold.token().map(|token| format!(", token {token}")).unwrap_or_default();
            tell(format_args!("{}: acquired after {}{token}", plan.name, duration::show(started.elapsed())));
            Supervision::new(plan, &tenure, hold, link, signals)?.run().await
        }
        Err(unfinished) => Err(give_up(&tenure, &plan.name, &mut signals, unfinished).await),
    }
}

/// Acquires; within a run of the same name by re-entering that, or by sharing its claim.
async fn acquire(plan: &Plan, tenure: &Tenure, started: Instant) -> Result<Hold, Failure> {
    let sharing = share::is_shared_on(tenure);
    if let Some(outer) = plan.held.of(&plan.store.shown(), &plan.name) {
        // If the outer run no longer holds it there is nothing to deadlock with, so this is a run like any other.
        if sharing {
            if plan.can_share(&tenure.capabilities())?
                && let Some(share) = plan.store.ask(Share::take(tenure, outer, plan.ttl)).await?
            {
                return Ok(Hold::Shared(share));
            }
        } else if let Some(token) = outer.token {
            let lock = plan.lock(&tenure.session_as(outer.owner.clone())).reenter(token);
            match plan.wait.acquire(started, tenure, &plan.name, &lock).await {
                Err(failure) if failure.kind() == Some(ErrorKind::NotHeld) => {}
                outcome => return Ok(Hold::Own(outcome?)),
            }
        }
    }
    let session = tenure.session();
    let mut lock = plan.lock(&session).within(plan.held.owners());
    if sharing {
        // No sessions there: the claim's id follows from owner and name, so that a nested run can renew it.
        lock = lock.repeatable();
    }
    let acquiring = plan.wait.acquire(started, tenure, &plan.name, &lock);
    let (name, owner, json) = (&plan.name, session.owner(), plan.json);
    match waiting::shown(Waiting { tenure, name, owner, since: started, json }, acquiring).await {
        Ok(guard) => Ok(Hold::Own(guard)),
        Err(failure) => {
            if sharing {
                give_back(tenure, &plan.name, session.owner(), &failure).await;
            }
            Err(failure)
        }
    }
}
