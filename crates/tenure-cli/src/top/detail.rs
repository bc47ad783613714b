//! One lock's own view: its holders, its queue and what happened to it.

use tenure::Name;

use super::model::Model;
use crate::label;
use crate::plain::plain;
use crate::show::{shown, time};
use crate::watch::lines;

/// How many holders, waiters and changes of one name are shown.
const SHOWN_MAX: usize = 200;

/// The view as lines of text.
pub(super) fn lines(model: &Model, name: &Name) -> Vec<String> {
    let mut text = vec![plain(name.as_str())];
    match model.rows.find(name) {
        None => text.push("  free".to_owned()),
        Some(view) => {
            text.push(format!("{} hold it", view.holders.len()));
            text.extend(view.holders.iter().take(SHOWN_MAX).map(|held| {
                format!(
                    "  {}  held {}  expires in {}  token {}  owner {}",
                    plain(&label::of_holder(held)),
                    time(held.held),
                    time(held.expires_in),
                    shown(held.token.as_ref()),
                    shown(held.owner.as_ref()),
                )
            }));
            more(&mut text, view.holders.len());
            text.push(format!("{} wait", view.waiters.len()));
            text.extend((1..).zip(&view.waiters).take(SHOWN_MAX).map(|(place, waiter)| {
                let shape = shown(waiter.shape.as_ref());
                let (who, owner) = (shown(waiter.label.as_ref()), shown(waiter.owner.as_ref()));
                format!("  {place}  {who}  waited {}  {shape}  owner {owner}", time(waiter.waited))
            }));
            more(&mut text, view.waiters.len());
        }
    }
    text.push("What happened since tenure top runs, the latest first".to_owned());
    text.extend(model.history_of(name).take(SHOWN_MAX).map(|change| {
        format!(
            "  {}  {:<8}  {}{}",
            lines::at(change),
            change.kind.as_str(),
            shown(change.label.as_ref()),
            lines::rest(change)
        )
    }));
    text
}

fn more(text: &mut Vec<String>, count: usize) {
    if count > SHOWN_MAX {
        text.push(format!("  and {} more", count - SHOWN_MAX));
    }
}
