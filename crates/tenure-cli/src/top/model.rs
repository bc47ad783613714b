//! What `top` shows and how keys change it. Nothing here draws, reads a clock or asks a store.

use std::collections::VecDeque;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use tenure::watch::Change;
use tenure::{Name, NameView};

use super::rows::{Column, Rows};

/// How many changes are remembered, of all names together.
const HISTORY_MAX: usize = 4_096;
/// How long a text may be that is typed.
const TYPED_MAX: usize = 256;
/// The reason of a break for which none was typed.
const REASON: &str = "broken in tenure top";

/// What is on the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// All names.
    List,
    /// All names, while the filter is typed.
    Filter,
    /// One name.
    Detail(Name),
    /// The question whether to break a name, what was typed so far, and whether the name's own view is behind it.
    Confirm {
        name: Name,
        typed: String,
        in_detail: bool,
    },
    Help,
}

/// What a key asks for that the model cannot do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Quit,
    Break { name: Name, reason: String },
}

/// What the store was seen to have.
#[derive(Debug)]
pub(crate) enum News {
    Looked {
        names: Vec<NameView>,
        changes: Vec<Change>,
        cut: bool,
    },
    /// It did not answer.
    Away(String),
    /// How a break went.
    Told(String),
}

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) rows: Rows,
    pub(crate) mode: Mode,
    history: VecDeque<Change>,
    /// What is said at the bottom until the next key.
    pub(crate) notice: Option<String>,
    /// Why the store does not answer.
    pub(crate) away: Option<String>,
    /// Whether there are more names than a look reads.
    pub(crate) cut: bool,
    /// The first line of a name's own view that is on the screen.
    pub(crate) scrolled: usize,
}

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            rows: Rows::default(),
            mode: Mode::List,
            history: VecDeque::new(),
            notice: None,
            away: None,
            cut: false,
            scrolled: 0,
        }
    }

    /// Takes in what was seen of the store.
    pub(crate) fn hear(&mut self, news: News) {
        match news {
            News::Looked { names, changes, cut } => {
                self.rows.replace(names);
                self.history.extend(changes);
                let excess = self.history.len().saturating_sub(HISTORY_MAX);
                self.history.drain(..excess);
                (self.away, self.cut) = (None, cut);
            }
            News::Away(why) => self.away = Some(why),
            News::Told(what) => self.notice = Some(what),
        }
    }

    /// What happened to a name, the latest first.
    pub(crate) fn history_of(&self, name: &Name) -> impl Iterator<Item = &Change> {
        self.history.iter().rev().filter(move |change| change.name == *name)
    }

    /// Takes in a key.
    pub(crate) fn press(&mut self, key: KeyEvent) -> Option<Effect> {
        self.notice = None;
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Some(Effect::Quit);
        }
        match self.mode.clone() {
            Mode::List => self.press_in_list(key.code),
            Mode::Filter => self.press_in_filter(key.code),
            Mode::Detail(name) => self.press_in_detail(name, key.code),
            Mode::Confirm { name, typed, in_detail } => self.press_in_confirm(name, typed, in_detail, key.code),
            Mode::Help => {
                self.mode = Mode::List;
                None
            }
        }
    }

    fn press_in_list(&mut self, key: KeyCode) -> Option<Effect> {
        match key {
            KeyCode::Char('q') => return Some(Effect::Quit),
            KeyCode::Char('?') => self.mode = Mode::Help,
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Esc => self.rows.filter_by(String::new()),
            KeyCode::Char('s') => self.rows.sort_by(self.rows.column().next()),
            KeyCode::Char('r') => self.rows.reverse(),
            KeyCode::Char(digit @ '1'..='6') => {
                self.rows.sort_by(Column::ALL[usize::from(digit as u8 - b'1')]);
            }
            KeyCode::Enter => {
                if let Some(name) = self.rows.selected().map(|view| view.name.clone()) {
                    (self.mode, self.scrolled) = (Mode::Detail(name), 0);
                }
            }
            KeyCode::Char('b') => {
                if let Some(name) = self.rows.selected().map(|view| view.name.clone()) {
                    self.mode = Mode::Confirm { name, typed: String::new(), in_detail: false };
                }
            }
            _ => self.rows.travel(key),
        }
        None
    }

    fn press_in_filter(&mut self, key: KeyCode) -> Option<Effect> {
        let mut filter = self.rows.filter().to_owned();
        match key {
            KeyCode::Enter => self.mode = Mode::List,
            KeyCode::Esc => {
                self.mode = Mode::List;
                self.rows.filter_by(String::new());
            }
            _ if type_key(&mut filter, key) => self.rows.filter_by(filter),
            _ => self.rows.travel(key),
        }
        None
    }

    fn press_in_detail(&mut self, name: Name, key: KeyCode) -> Option<Effect> {
        match key {
            KeyCode::Char('q') => return Some(Effect::Quit),
            KeyCode::Esc | KeyCode::Enter | KeyCode::Left | KeyCode::Backspace => self.mode = Mode::List,
            KeyCode::Char('?') => self.mode = Mode::Help,
            KeyCode::Char('b') => self.mode = Mode::Confirm { name, typed: String::new(), in_detail: true },
            KeyCode::Down | KeyCode::Char('j') => self.scrolled = self.scrolled.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.scrolled = self.scrolled.saturating_add(10),
            KeyCode::PageUp => self.scrolled = self.scrolled.saturating_sub(10),
            KeyCode::Home => self.scrolled = 0,
            _ => {}
        }
        None
    }

    fn press_in_confirm(&mut self, name: Name, mut typed: String, in_detail: bool, key: KeyCode) -> Option<Effect> {
        let back = if in_detail { Mode::Detail(name.clone()) } else { Mode::List };
        match key {
            KeyCode::Esc => {
                self.notice = Some(format!("{name} was not broken"));
                self.mode = back;
            }
            KeyCode::Enter => {
                self.mode = back;
                if let Some(reason) = confirmed(&typed) {
                    return Some(Effect::Break { name, reason });
                }
                self.notice = Some(format!("{name} was not broken: that takes a yes"));
            }
            _ => {
                type_key(&mut typed, key);
                self.mode = Mode::Confirm { name, typed, in_detail };
            }
        }
        None
    }
}

/// The reason behind a `y` or a `yes`; none if it was neither.
fn confirmed(typed: &str) -> Option<String> {
    let (answer, reason) = typed.trim().split_once(' ').unwrap_or((typed.trim(), ""));
    if !["y", "yes"].contains(&answer.to_lowercase().as_str()) {
        return None;
    }
    let reason = reason.trim();
    Some(if reason.is_empty() { REASON.to_owned() } else { reason.to_owned() })
}

/// Lets a key change a text; false if it is none that does.
fn type_key(text: &mut String, key: KeyCode) -> bool {
    match key {
        KeyCode::Char(c) if text.len() < TYPED_MAX => text.push(c),
        KeyCode::Char(_) => {}
        KeyCode::Backspace => drop(text.pop()),
        _ => return false,
    }
    true
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
