//! The line that is shown on a terminal while a claim waits: who holds the lock, and how far off our turn is.

use std::io::IsTerminal;
use std::pin::pin;
use std::time::Duration;

use tenure::machine::NameView;
use tenure::{Name, Owner, Tenure};

use crate::duration;
use crate::label;
use crate::line::Line;
use crate::plain::plain;

/// How long a wait may be before it is worth a line.
const QUIET: Duration = Duration::from_millis(300);
const REFRESH: Duration = Duration::from_secs(1);
/// What is left of a label or a name, at least, where the line is too short for both.
const PART_MIN: usize = 8;

/// Awaits `work`, showing meanwhile what it waits for. Silent where stderr is no terminal.
pub(crate) async fn shown<T>(tenure: &Tenure, name: &Name, owner: &Owner, work: impl Future<Output = T>) -> T {
    if !std::io::stderr().is_terminal() {
        return work.await;
    }
    let mut work = pin!(work);
    let mut line = Line::default();
    let mut pause = QUIET;
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = refresh(tenure, name, owner, &mut line, pause) => pause = REFRESH,
        }
    }
}

async fn refresh(tenure: &Tenure, name: &Name, owner: &Owner, line: &mut Line, pause: Duration) {
    tokio::time::sleep(pause).await;
    match tokio::time::timeout(REFRESH * 2, tenure.inspect(name.as_str())).await {
        Ok(Ok(view)) => line.draw(|width| State::of(&view, owner, tenure.capabilities().queue).within(width)),
        // The acquire itself says how it ends.
        Ok(Err(_)) | Err(_) => {
            let place = "the store does not answer".to_owned();
            line.draw(|width| State { name: name.to_string(), place, holder: None }.within(width));
        }
    }
}

/// What the line tells.
struct State {
    name: String,
    place: String,
    holder: Option<Holder>,
}

struct Holder {
    label: String,
    /// How many more, and how long the first has left.
    rest: String,
}

impl State {
    /// `in_order`: whether those who wait are served in the order they came.
    fn of(view: &NameView, owner: &Owner, in_order: bool) -> Self {
        let ahead = view.waiters.iter().position(|waiter| waiter.owner.as_ref() == Some(owner));
        let place = place(ahead, view.waiters.len(), in_order);
        let holder = view.holders.first().map(|first| {
            let more = match view.holders.len() {
                1 => String::new(),
                holders => format!(" and {} more", holders - 1),
            };
            let left = first.expires_in.map(|left| format!(" ({} left)", duration::show(left)));
            let label = label::of_holder(first);
            Holder { label, rest: more + &left.unwrap_or_default() }
        });
        Self { name: view.name.to_string(), place, holder }
    }

    /// The line in at most `width` characters: cut at the label first, then at the name, at the place last.
    fn within(&self, width: usize) -> String {
        let (mut name, mut label) = (plain(&self.name), String::new());
        let line = |name: &str, label: &str| match &self.holder {
            Some(Holder { rest, .. }) => format!("tenure: {name}: {}, held by {label}{rest}", self.place),
            None => format!("tenure: {name}: {}", self.place),
        };
        if let Some(holder) = &self.holder {
            label = plain(&holder.label);
        }
        for part in 0..2 {
            let over = line(&name, &label).chars().count().saturating_sub(width);
            shorten(if part == 0 { &mut label } else { &mut name }, over);
        }
        line(&name, &label).chars().take(width).collect()
    }
}

/// How far off our turn is, as far as it can be told.
fn place(ahead: Option<usize>, all: usize, in_order: bool) -> String {
    match (ahead, all) {
        (Some(ahead), all) if in_order => format!("place {} of {all}", ahead + 1),
        (Some(_), all @ 2..) => format!("waiting, one of {all}"),
        _ => "waiting".to_owned(),
    }
}

/// Takes `by` characters off the end, but leaves enough to know it by.
fn shorten(text: &mut String, by: usize) {
    let length = text.chars().count();
    let kept = length.saturating_sub(by).max(PART_MIN);
    if kept < length {
        *text = text.chars().take(kept - 1).chain(['…']).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, label: &str, width: usize) -> String {
        let holder = Holder { label: label.to_owned(), rest: " (2.5s left)".to_owned() };
        State { name: name.to_owned(), place: "place 1 of 1".to_owned(), holder: Some(holder) }.within(width)
    }

    #[test]
    fn the_label_is_cut_before_the_name_and_the_place_last() {
        assert_eq!(line("x", "boss", 80), "tenure: x: place 1 of 1, held by boss (2.5s left)");
        let long = "l".repeat(100);
        assert_eq!(line("x", &long, 60), format!("tenure: x: place 1 of 1, held by {}… (2.5s left)", "l".repeat(14)));
        let both = line(&"n".repeat(100), &long, 70);
        assert!(both.contains("n…: place 1 of 1, held by lllllll… (2.5s left)"), "{both}");
        assert_eq!(both.chars().count(), 70);
        assert_eq!(line(&long, &long, 30), "tenure: lllllll…: place 1 of 1");
    }

    #[test]
    fn a_place_is_told_only_where_there_is_an_order() {
        assert_eq!(place(Some(1), 2, true), "place 2 of 2");
        assert_eq!(place(Some(1), 2, false), "waiting, one of 2");
        assert_eq!(place(Some(0), 1, false), "waiting");
        assert_eq!(place(None, 2, true), "waiting");
    }

    #[test]
    fn a_label_cannot_write_over_the_line() {
        assert!(!line("x", "\r\x1b[2Kfree", 80).contains(['\r', '\x1b']));
    }
}
