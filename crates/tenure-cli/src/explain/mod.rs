//! `explain`: `show` with a diagnosis.

mod place;
mod renewal;
mod report;
mod text;
mod turns;

use std::time::{Duration, Instant};

use tenure::{Name, NameView, Tenure};

use crate::args::Explain;
use crate::exit::Exit;
use crate::failure::{Failure, Talk};
use crate::store::Store;
use crate::{duration, label, output};
use renewal::{Renewal, Teller};
use report::Report;

/// Two looks that follow each other are at least so far apart.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// How often it looks again at most.
const LOOKS_MAX: u32 = 8;

pub(crate) async fn run(args: Explain, store: Store, json: bool) -> Result<Exit, Failure> {
    let name = Name::new(&args.name)?;
    let explain = async |tenure: &Tenure| {
        let teller = Teller::of(tenure.guarantees().store);
        let seen = observe(tenure, &store, &name, teller, json).await?;
        let report = Report::of(seen, tenure);
        if json {
            output::print_json(&report)?;
        } else {
            output::print(text::of(&report).as_bytes())?;
        }
        Ok(Exit::Done)
    };
    store.with(&label::of_person(), json, explain).await
}

/// What was seen of a name, and what that says of its holders' renewals.
pub(crate) struct Seen {
    pub(crate) view: NameView,
    /// One for each holder of the view.
    pub(crate) renewals: Vec<Renewal>,
    /// The time between the first look and the last one.
    pub(crate) looked: Duration,
}

/// Looks at a name, and again until every holder was seen to renew, or should have been.
///
/// # Cancel safety
///
/// Cancel safe: it changes nothing.
async fn observe(tenure: &Tenure, store: &Store, name: &Name, teller: Teller, json: bool) -> Result<Seen, Failure> {
    let first = store.ask(tenure.inspect(name.as_str())).await?;
    let answered = Instant::now();
    let limit = teller.look_for(&first);
    if !limit.is_zero() && !json && Talk::now() != Talk::Quiet {
        let limit = duration::show(limit);
        crate::failure::say(format_args!("{name}: looking for up to {limit} whether it is renewed"));
    }
    let pause = (limit / LOOKS_MAX).max(PAUSE_MIN);
    let mut seen =
        Seen { renewals: teller.judge(&first, &first, Duration::ZERO), view: first.clone(), looked: Duration::ZERO };
    while seen.looked < limit {
        tokio::time::sleep(pause.min(limit.saturating_sub(seen.looked)).max(PAUSE_MIN)).await;
        let asked = answered.elapsed();
        let view = store.ask(tenure.inspect(name.as_str())).await?;
        seen = Seen { renewals: teller.judge(&first, &view, asked), view, looked: asked };
        if seen.renewals.iter().all(|renewal| matches!(renewal, Renewal::Renewing | Renewal::Untold)) {
            break;
        }
    }
    Ok(seen)
}
