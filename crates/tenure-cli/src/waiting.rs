//! What is told while a claim waits: who holds the lock, and how far off our turn is.

use std::io::IsTerminal;
use std::pin::pin;
use std::time::{Duration, Instant};

use tenure::machine::NameView;
use tenure::{Name, Owner, Tenure};

use crate::duration;
use crate::failure::{Talk, write_lines};
use crate::label;
use crate::line::Line;
use crate::plain::plain;

/// How long a wait may be before it is worth a line.
const QUIET: Duration = Duration::from_millis(300);
const REFRESH: Duration = Duration::from_secs(1);
/// What is left of a label or a name, at least, where the line is too short for both.
const PART_MIN: usize = 8;

/// Where it is told what a claim waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A line that is drawn over.
    Terminal,
    /// A terminal that can only be written on: a line for every change.
    Dumb,
    /// A file or a pipe: one line.
    Log,
}

impl Place {
    /// None where nobody is to be told.
    fn of_stderr(json: bool) -> Option<Self> {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        match std::io::stderr().is_terminal() {
            _ if Talk::now() == Talk::Quiet || json => None,
            true if is_dumb => Some(Self::Dumb),
            true => Some(Self::Terminal),
            false => Some(Self::Log),
        }
    }
}

/// What waits.
pub(crate) struct Waiting<'a> {
    pub(crate) tenure: &'a Tenure,
    pub(crate) name: &'a Name,
    pub(crate) owner: &'a Owner,
    pub(crate) since: Instant,
    pub(crate) json: bool,
}

/// Awaits `work`, telling meanwhile what it waits for.
pub(crate) async fn shown<T>(waiting: Waiting<'_>, work: impl Future<Output = T>) -> T {
    let Some(place) = Place::of_stderr(waiting.json) else { return work.await };
    let mut work = pin!(work);
    let mut told = Told { place, line: Line::default(), before: None };
    let mut pause = QUIET;
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = waiting.look(&mut told, pause), if told.goes_on() => pause = REFRESH,
        }
    }
}

/// What was told so far.
struct Told {
    place: Place,
    line: Line,
    /// The last state, without its times.
    before: Option<State>,
}

impl Told {
    fn goes_on(&self) -> bool {
        self.place != Place::Log || self.before.is_none()
    }

    fn tell(&mut self, state: State) {
        if self.place == Place::Terminal {
            self.line.draw(|width| state.within(width));
        } else if self.before.as_ref().is_none_or(|before| before.differs(&state)) {
            write_lines(&format!("{}\n", state.within(usize::MAX)));
        }
        self.before = Some(state);
    }
}

impl Waiting<'_> {
    async fn look(&self, told: &mut Told, pause: Duration) {
        tokio::time::sleep(pause).await;
        let waited = self.since.elapsed();
        let state = match tokio::time::timeout(REFRESH * 2, self.tenure.inspect(self.name.as_str())).await {
            Ok(Ok(view)) => {
                let owner = self.tenure.shown_owner(self.name, self.owner);
                State::of(&view, &owner, self.tenure.capabilities().queue, waited)
            }
            // The acquire itself says how it ends.
            Ok(Err(_)) | Err(_) => {
                State { place: "the store does not answer".to_owned(), ..State::unknown(self.name, waited) }
            }
        };
        told.tell(state);
    }
}

/// What is told.
struct State {
    name: String,
    holder: Option<Holder>,
    waited: Duration,
    place: String,
}

struct Holder {
    label: String,
    /// How many more there are.
    more: usize,
    held: Option<Duration>,
}

impl State {
    fn unknown(name: &Name, waited: Duration) -> Self {
        Self { name: name.to_string(), holder: None, waited, place: String::new() }
    }

    /// `owner` as views show it; `in_order`: whether those who wait are served in the order they came.
    fn of(view: &NameView, owner: &Owner, in_order: bool, waited: Duration) -> Self {
        let ahead = view.waiters.iter().position(|waiter| waiter.owner.as_ref() == Some(owner));
        let holder = view.holders.first().map(|first| Holder {
            label: label::of_holder(first),
            more: view.holders.len() - 1,
            held: first.held,
        });
        Self { holder, place: place(ahead, view.waiters.len(), in_order), ..Self::unknown(&view.name, waited) }
    }

    /// Whether it tells something else, but for the time.
    fn differs(&self, other: &Self) -> bool {
        let label = |state: &Self| state.holder.as_ref().map(|holder| (holder.label.clone(), holder.more));
        self.place != other.place || label(self) != label(other)
    }

    /// The line in at most `width` characters: cut at the label first, then at the name.
    fn within(&self, width: usize) -> String {
        let (mut name, mut label) = (plain(&self.name), String::new());
        let line = |name: &str, label: &str| {
            let held_by = self.holder.as_ref().map(|holder| {
                let more = if holder.more == 0 { String::new() } else { format!(" and {} more", holder.more) };
                let held = holder.held.map(|held| format!(" for {}", duration::show(held))).unwrap_or_default();
                format!("held by {label}{more}{held}")
            });
            let waiting = format!("waiting {}", duration::show(self.waited));
            let place = Some(self.place.clone()).filter(|place| !place.is_empty());
            let parts: Vec<String> = held_by.into_iter().chain([waiting]).chain(place).collect();
            format!("tenure: {name}: {}", parts.join(", "))
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
        (Some(0), _) if in_order => "next".to_owned(),
        (Some(ahead), _) if in_order => format!("{ahead} ahead"),
        (Some(_), all @ 2..) => format!("one of {all}"),
        _ => String::new(),
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
        let held = Some(Duration::from_secs(120));
        let holder = Some(Holder { label: label.to_owned(), more: 0, held });
        let (name, place) = (name.to_owned(), "3 ahead".to_owned());
        State { name, holder, waited: Duration::from_secs(14), place }.within(width)
    }

    #[test]
    fn the_label_is_cut_before_the_name() {
        assert_eq!(line("x", "boss", 80), "tenure: x: held by boss for 2m 00s, waiting 14s, 3 ahead");
        let long = "l".repeat(100);
        let told = "… for 2m 00s, waiting 14s, 3 ahead";
        assert_eq!(line("x", &long, 60), format!("tenure: x: held by {}{told}", "l".repeat(7)));
        let both = line(&"n".repeat(100), &long, 70);
        assert_eq!(both, format!("tenure: {}…: held by lllllll{told}", "n".repeat(10)));
        assert_eq!(both.chars().count(), 70);
        assert_eq!(line(&long, &long, 30), "tenure: lllllll…: held by llll");
    }

    #[test]
    fn a_place_is_told_only_where_there_is_an_order() {
        assert_eq!(place(Some(1), 2, true), "1 ahead");
        assert_eq!(place(Some(0), 2, true), "next");
        assert_eq!(place(Some(1), 2, false), "one of 2");
        assert_eq!(place(Some(0), 1, false), "");
        assert_eq!(place(None, 2, true), "");
    }

    #[test]
    fn a_label_cannot_write_over_the_line() {
        assert!(!line("x", "\r\x1b[2Kfree", 80).contains(['\r', '\x1b']));
    }

    #[test]
    fn the_passing_of_time_is_no_news() {
        let state = |label: &str, waited| State {
            name: "x".to_owned(),
            holder: Some(Holder { label: label.to_owned(), more: 0, held: Some(waited) }),
            waited,
            place: "next".to_owned(),
        };
        let (one, two) = (Duration::from_secs(1), Duration::from_secs(2));
        assert!(!state("a", one).differs(&state("a", two)));
        assert!(state("a", one).differs(&state("b", one)));
    }
}
