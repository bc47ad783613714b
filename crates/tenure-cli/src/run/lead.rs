//! `elect`: a command that runs while it leads, term after term.

use std::time::{Duration, Instant};

use tenure::{Name, Owner, Tenure};

use super::hold::Hold;
use super::holds::Holds;
use super::link::Link;
use super::plan::Plan;
use super::purpose::Purpose;
use super::supervise::Supervision;
use super::{terminal, tree};
use crate::duration;
use crate::exit::Exit;
use crate::failure::{Failure, say, tell};
use crate::signals::Signals;
use crate::wait::{FAREWELL, Unfinished, give_up, interrupted};
use crate::waiting::{self, Waiting};

/// The pause before a store that is out of reach is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// How a term ended.
enum Term {
    /// The leadership was lost: campaign again.
    Lost(Failure),
    /// The store was out of reach before anybody was elected.
    NotElected(Failure),
    Over(Result<Exit, Failure>),
}

/// Runs the command whenever it leads, until the command ends by itself; its exit code is the command's.
pub(crate) async fn lead(mut plan: Plan) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    tree::adopt_orphans();
    terminal::outlive_background()?;
    plan.refuse_nested()?;
    let tenure = tokio::select! {
        connected = plan.store.connect(&plan.label, plan.wait, plan.json) => connected?,
        signal = signals.next() => return Err(interrupted(&plan.title(), signal)),
    };
    plan.fit(&tenure.capabilities())?;
    let mut terms = 0;
    let outcome = loop {
        let mut link = Link::start_guardian(&plan.command)?;
        let term = term(&plan, &tenure, &mut link, &mut signals).await;
        link.close().await;
        match term {
            Term::Over(outcome) => break outcome,
            Term::Lost(failure) if is_once(&plan) => break Err(failure),
            Term::Lost(failure) => {
                if let Some(signal) = signals.last() {
                    break Err(failure.and("not campaigning again").exits(Exit::Signal(signal)));
                }
                terms += 1;
                say(format_args!("{failure}; campaigning again"));
            }
            // Once it has led, it rides outages out.
            Term::NotElected(failure) if terms == 0 => break Err(failure),
            Term::NotElected(failure) => {
                tell(format_args!("{failure}; asking again"));
                tokio::select! {
                    () = tokio::time::sleep(PAUSE) => {}
                    signal = signals.next() => break Err(interrupted(&plan.title(), signal)),
                }
            }
        }
    };
    let _ = signals.allow(FAREWELL, tenure.close()).await;
    outcome
}

fn is_once(plan: &Plan) -> bool {
    matches!(plan.purpose, Purpose::Lead { once: true, .. })
}

/// Campaigns, and runs the command for as long as it leads.
async fn term(plan: &Plan, tenure: &Tenure, link: &mut Link, signals: &mut Signals) -> Term {
    let started = Instant::now();
    let elected = tokio::select! {
        elected = campaign(plan, tenure, started) => elected,
        signal = signals.next() => {
            return Term::Over(Err(give_up(tenure, &plan.title(), signals, Unfinished::Interrupted(signal)).await));
        }
    };
    let hold = match elected {
        Ok(hold) => hold,
        Err(failure) if failure.exit == Exit::Unavailable => return Term::NotElected(failure),
        Err(failure) => return Term::Over(Err(failure)),
    };
    let term = hold.token().map(|term| term.to_string()).unwrap_or_default();
    tell(format_args!("{}: leads after {}, term {term}", hold.name(), duration::show(started.elapsed())));
    let outcome = match Supervision::new(plan, tenure, Holds::of(vec![hold]), link, signals) {
        Ok(supervision) => supervision.run().await,
        Err(failure) => Err(failure),
    };
    match outcome {
        Err(failure) if failure.exit == Exit::Lost => Term::Lost(failure),
        outcome => Term::Over(outcome),
    }
}

async fn campaign(plan: &Plan, tenure: &Tenure, started: Instant) -> Result<Hold, Failure> {
    let Some(name) = plan.names.first() else { return Err(Failure::usage("no name")) };
    let election = plan.election(tenure, name);
    let (owner, json) = (Owner::random(), plan.json);
    let campaigning = election.campaign();
    let waiting = Waiting { tenure, name, owner: &owner, since: started, json };
    Ok(Hold::Own(waiting::shown(waiting, campaigning).await?.into_guard()))
}

impl Plan {
    fn election(&self, tenure: &Tenure, name: &Name) -> tenure::Election {
        let mut election = tenure.election(name.as_str()).ttl(self.ttl).label(&self.label).within(self.held.owners());
        if let Purpose::Lead { address: Some(address), .. } = &self.purpose {
            election = election.address(address);
        }
        match self.replicas() {
            Some(replicas) => election.min_replicas(replicas),
            None => election,
        }
    }
}
