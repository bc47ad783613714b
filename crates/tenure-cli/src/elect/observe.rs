//! `elect --observe`: who leads, a line for each change.

use std::pin::pin;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use tenure::{Leader, Leaders, Name, Tenure, Token};

use crate::duration;
use crate::exit::Exit;
use crate::failure::{Failure, note, warn};
use crate::label;
use crate::output::json_line;
use crate::plain::plain;
use crate::signals::Signals;
use crate::store::Store;
use crate::watch::{Outlet, until_unread};

/// How often a store that is not there yet, and a reader that may be gone, are looked at.
const INTERVAL: Duration = Duration::from_millis(500);

/// The end of the year 9999, since 1970.
const LAST_SECOND: Duration = Duration::from_secs(253_402_300_799);

/// A leader, for programs.
#[derive(Serialize)]
struct Told<'a> {
    name: &'a Name,
    term: Token,
    label: &'a str,
    address: Option<&'a str>,
    since_ms: u64,
}

pub(super) async fn run(name: &str, store: Store, json: bool) -> Result<Exit, Failure> {
    let name = Name::new(name)?;
    let mut signals = Signals::listen()?;
    if store.is_missing() {
        note(&format!("{}: there is no such file yet", store.shown()), json);
        tokio::select! {
            signal = signals.next() => return Ok(Exit::Signal(signal)),
            () = until_unread(INTERVAL) => return Ok(Exit::Done),
            () = store.until_there(INTERVAL) => {}
        }
    }
    let observing = async |tenure: &Tenure| {
        let election = tenure.election(name.as_str());
        // What can never work is told at once; a store that goes away later is waited for.
        store.ask(election.leader()).await?;
        tokio::select! {
            signal = signals.next() => Ok(Exit::Signal(signal)),
            ended = tell(&name, election.observe(), &store, json) => ended,
        }
    };
    store.with(&label::of_person(), json, observing).await
}

/// Tells leaders until nobody reads of them any more.
///
/// # Cancel safety
///
/// Cancelling loses a leader that was seen and not written yet.
async fn tell(name: &Name, mut leaders: Leaders, store: &Store, json: bool) -> Result<Exit, Failure> {
    let mut outlet = Outlet::to_stdout()?;
    let mut away = false;
    loop {
        let leader = {
            // One look, however long the store takes: it is not begun anew while the reader is looked after.
            let mut next = pin!(leaders.next());
            loop {
                tokio::select! {
                    leader = &mut next => break leader,
                    () = tokio::time::sleep(INTERVAL) => {
                        if outlet.is_closed()? {
                            return Ok(Exit::Done);
                        }
                    }
                }
            }
        };
        match &leader {
            Ok(_) if away => warn(&format!("{} answers again", store.shown()), json),
            Err(error) if !away => warn(&format!("{error}; looking on"), json),
            _ => {}
        }
        away = leader.is_err();
        if let Ok(leader) = leader {
            // As many lines as wait there are never: leaders come one after another.
            outlet.offer(&line(name, &leader, json)?, |_| String::new());
        }
    }
}

fn line(name: &Name, leader: &Leader, json: bool) -> Result<String, Failure> {
    let (address, since) = (leader.address.as_deref(), leader.since);
    if !json {
        // A clock that is far off must not stop the line: there is no way to write later years.
        let at = humantime::format_rfc3339_seconds(since.min(UNIX_EPOCH + LAST_SECOND));
        let address = address.map(|address| format!(" at {}", plain(address))).unwrap_or_default();
        return Ok(format!("{at}  {name}  {}{address}  term {}\n", plain(&leader.label), leader.term));
    }
    let since_ms = duration::ms(since.duration_since(UNIX_EPOCH).unwrap_or_default());
    json_line(&Told { name, term: leader.term, label: &leader.label, address, since_ms })
}
