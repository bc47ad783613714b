//! `watch`: who is granted, waits, releases and loses, a line each.

pub(crate) mod lines;
mod outlet;

use tenure::watch::NAMES_MAX;
use tenure::{Tenure, Watch};

use crate::args;
use crate::duration;
use crate::exit::Exit;
use crate::failure::{Failure, note, warn};
use crate::label;
use crate::signals::Signals;
use crate::store::Store;
pub(crate) use outlet::{Outlet, until_unread};

pub(crate) async fn run(args: args::Watch, store: Store, json: bool) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let missing = store.is_missing();
    if missing {
        note(&format!("{}; there is no such file yet", beginning(&args, &store)), json);
        tokio::select! {
            signal = signals.next() => return Ok(Exit::Signal(signal)),
            () = outlet::until_unread(args.interval) => return Ok(Exit::Done),
            () = store.until_there(args.interval) => {}
        }
    }
    let watching = async |tenure: &Tenure, signals: &mut Signals| {
        let mut watch = tenure.watch(&args.prefix).every(args.interval);
        if missing {
            watch = watch.from_empty();
        }
        match signals.unless_told(store.ask(watch.look())).await {
            Ok(looked) => looked?,
            Err(signal) => return Ok(signal),
        };
        if !missing {
            note(&beginning(&args, &store), json);
        }
        tokio::select! {
            signal = signals.next() => Ok(Exit::Signal(signal)),
            ended = tell(&mut watch, &store, json) => ended,
        }
    };
    store.with_signals(&label::of_person(), json, &mut signals, watching).await
}

fn beginning(args: &args::Watch, store: &Store) -> String {
    let prefix = &args.prefix;
    let which = if prefix.is_empty() { "all names".to_owned() } else { format!("names that begin with {prefix:?}") };
    format!(
        "watching {which} in {}: looking every {}; what comes and goes between two looks is not seen",
        store.shown(),
        duration::exact(args.interval),
    )
}

/// Tells changes until nobody reads them any more.
///
/// # Cancel safety
///
/// Cancelling loses what was seen and not written yet.
async fn tell(watch: &mut Watch, store: &Store, json: bool) -> Result<Exit, Failure> {
    let mut outlet = Outlet::to_stdout()?;
    let (mut away, mut cut) = (false, false);
    loop {
        if !cut && watch.is_cut() {
            cut = true;
            warn(&format!("more than {NAMES_MAX} names: the first are watched; name a longer prefix"), json);
        }
        let looked = watch.look().await;
        if outlet.is_closed()? {
            return Ok(Exit::Done);
        }
        match &looked {
            Ok(_) if away => warn(&format!("{} answers again", store.shown()), json),
            Err(error) if !away => warn(&format!("{error}; looking on"), json),
            _ => {}
        }
        away = looked.is_err();
        for change in watch.changes() {
            outlet.offer(&lines::of_change(&change, json)?, |count| lines::of_dropped(count, json));
        }
        outlet.settle(|count| lines::of_dropped(count, json));
    }
}
