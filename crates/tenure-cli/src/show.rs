//! `show` and `ls`: who holds what, and who waits.

use std::time::Duration;

use tenure::machine::{NameView, Shape};
use tenure::{Name, Tenure};

use crate::args::{Ls, Show};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;
use crate::plain::plain;
use crate::store::Store;
use crate::table::{finish, table};
use crate::{duration, label};

/// What stands for a value a foreign client did not record.
const UNKNOWN: &str = "-";
/// The header over waiters: a claim stands for all tasks of its program that want the lock.
pub(crate) const WAITER: &str = "WAITER AND ITS TASKS";

pub(crate) async fn show(args: Show, store: Store, json: bool) -> Result<Exit, Failure> {
    let name = Name::new(&args.name)?;
    let show = async |tenure: &Tenure| {
        let view = store.ask(tenure.inspect(name.as_str())).await?;
        if json {
            output::print_json(&view)?;
        } else {
            output::print(describe(&view, tenure.capabilities().queue).as_bytes())?;
        }
        Ok(Exit::Done)
    };
    store.with(&label::of_person(), json, show).await
}

pub(crate) async fn list(args: Ls, store: Store, json: bool) -> Result<Exit, Failure> {
    let list = async |tenure: &Tenure| store.ask(tenure.list(&args.prefix)).await;
    let views = store.with(&label::of_person(), json, list).await?;
    if json {
        output::print_json(&views)?;
    } else if views.is_empty() {
        let which = if args.prefix.is_empty() { String::new() } else { format!(" that begin with {:?}", args.prefix) };
        crate::failure::say(format_args!("no names in use{which} in {}", store.shown()));
    } else {
        output::print(overview(&views).as_bytes())?;
    }
    Ok(Exit::Done)
}

/// A name in full: a line on its state, then its holders and its waiters; their places, if they are served in order.
fn describe(view: &NameView, in_order: bool) -> String {
    if view.is_free() {
        return format!("{} is free\n", plain(view.name.as_str()));
    }
    let mut text = format!("{} is {}\n", plain(view.name.as_str()), state(view));
    if !view.holders.is_empty() {
        let mut holders = table(["HOLDER", "SHAPE", "TOKEN", "HELD", "EXPIRES IN", "OWNER"]);
        for holder in &view.holders {
            holders.add_row([
                shown(holder.label.as_ref()),
                shape(holder.shape),
                shown(holder.token.as_ref()),
                time(holder.held),
                time(holder.expires_in),
                shown(holder.owner.as_ref()),
            ]);
        }
        text.push('\n');
        text.push_str(&finish(holders, &["OWNER", "HOLDER"]));
    }
    if !view.waiters.is_empty() {
        let place = |place: String| in_order.then_some(place).into_iter();
        let mut waiters =
            table(place("PLACE".to_owned()).chain([WAITER, "SHAPE", "WAITED", "OWNER"].map(ToOwned::to_owned)));
        for (index, waiter) in view.waiters.iter().enumerate() {
            let owner = shown(waiter.owner.as_ref());
            let rest = [shown(waiter.label.as_ref()), shape(waiter.shape), time(waiter.waited), owner];
            waiters.add_row(place((index + 1).to_string()).chain(rest));
        }
        text.push('\n');
        text.push_str(&finish(waiters, &["OWNER", WAITER]));
    }
    text
}

/// Many names, a line each.
fn overview(views: &[NameView]) -> String {
    let mut names = table(["NAME", "STATE", "HOLDER", "HELD", "EXPIRES IN", "WAITING"]);
    for view in views {
        let first = view.holders.first();
        let more = view.holders.len().saturating_sub(1);
        let mut holder = shown(first.and_then(|holder| holder.label.as_ref()));
        if more > 0 {
            holder.push_str(&format!(" and {more} more"));
        }
        names.add_row([
            plain(view.name.as_str()),
            state(view),
            holder,
            time(first.and_then(|holder| holder.held)),
            time(first.and_then(|holder| holder.expires_in)),
            view.waiters.len().to_string(),
        ]);
    }
    finish(names, &["HOLDER"])
}

fn state(view: &NameView) -> String {
    match view.capacity {
        _ if view.holders.is_empty() => "waited for".to_owned(),
        None => format!("held shared by {}", view.holders.len()),
        Some(capacity) if view.holders.iter().any(|holder| matches!(holder.shape, Some(Shape::Permits { .. }))) => {
            let taken: u64 = view.holders.iter().map(|holder| u64::from(holder.units.unwrap_or(1))).sum();
            format!("held: {taken} of {capacity} permits")
        }
        Some(_) => "held".to_owned(),
    }
}

/// How a claim holds or will hold: permits with their number.
fn shape(shape: Option<Shape>) -> String {
    match shape {
        Some(Shape::Permits { units, of }) => format!("{units} of {of}"),
        Some(shape) => shape.as_str().to_owned(),
        None => UNKNOWN.to_owned(),
    }
}

/// A value, or that it is not known.
pub(crate) fn shown(value: Option<&impl ToString>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| plain(&value.to_string()))
}

/// A duration, or that it is not known.
pub(crate) fn time(duration: Option<Duration>) -> String {
    duration.map_or_else(|| UNKNOWN.to_owned(), duration::show)
}
