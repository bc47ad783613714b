//! The names of a table: which are shown, in which order, and which of them is chosen.

use std::cmp::Ordering;
use std::ops::Range;

use ratatui::crossterm::event::KeyCode;
use tenure::{Name, NameView};

use crate::label;

/// What a table has, and can be sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Name,
    Holder,
    Held,
    ExpiresIn,
    Waiting,
    Token,
}

impl Column {
    pub(crate) const ALL: [Self; 6] =
        [Self::Name, Self::Holder, Self::Held, Self::ExpiresIn, Self::Waiting, Self::Token];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Name => "NAME",
            Self::Holder => "HOLDER",
            Self::Held => "HELD",
            Self::ExpiresIn => "EXPIRES IN",
            Self::Waiting => "WAITING",
            Self::Token => "TOKEN",
        }
    }

    /// The one to the right of it, and behind the last the first.
    pub(crate) fn next(self) -> Self {
        let at = Self::ALL.iter().position(|column| *column == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// Whether what is largest is of most interest.
    fn begins_with_the_largest(self) -> bool {
        matches!(self, Self::Held | Self::Waiting | Self::Token)
    }

    fn compare(self, a: &NameView, b: &NameView) -> Ordering {
        let (first, second) = (a.holders.first(), b.holders.first());
        match self {
            Self::Name => Ordering::Equal,
            Self::Holder => first.map(label::of_holder).cmp(&second.map(label::of_holder)),
            Self::Held => first.and_then(|held| held.held).cmp(&second.and_then(|held| held.held)),
            Self::ExpiresIn => first.and_then(|held| held.expires_in).cmp(&second.and_then(|held| held.expires_in)),
            Self::Waiting => a.waiters.len().cmp(&b.waiters.len()),
            Self::Token => first.and_then(|held| held.token).cmp(&second.and_then(|held| held.token)),
        }
    }
}

/// All names that a look saw, and the part of them that is on the screen.
#[derive(Debug)]
pub(crate) struct Rows {
    /// In byte order.
    names: Vec<NameView>,
    /// Those that pass the filter, as they are sorted.
    order: Vec<usize>,
    column: Column,
    reversed: bool,
    filter: String,
    /// Which name is chosen, and where it stands in the order.
    chosen: Option<Name>,
    at: usize,
    /// Where the screen begins in the order, and how many rows it has.
    top: usize,
    height: usize,
}

impl Default for Rows {
    fn default() -> Self {
        Self {
            names: Vec::new(),
            order: Vec::new(),
            column: Column::Name,
            reversed: false,
            filter: String::new(),
            chosen: None,
            at: 0,
            top: 0,
            height: 1,
        }
    }
}

impl Rows {
    pub(crate) fn column(&self) -> Column {
        self.column
    }

    pub(crate) fn is_reversed(&self) -> bool {
        self.reversed
    }

    pub(crate) fn filter(&self) -> &str {
        &self.filter
    }

    /// How many names there are, and how many of them pass the filter.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.names.len(), self.order.len())
    }

    /// A name as the last look saw it.
    pub(crate) fn find(&self, name: &Name) -> Option<&NameView> {
        let at = self.names.binary_search_by(|view| view.name.cmp(name)).ok()?;
        self.names.get(at)
    }

    pub(crate) fn selected(&self) -> Option<&NameView> {
        self.names.get(*self.order.get(self.at)?)
    }

    /// The rows on the screen, each with whether it is chosen. No others are touched.
    pub(crate) fn visible(&self) -> impl Iterator<Item = (&NameView, bool)> {
        self.window().filter_map(|at| Some((self.names.get(*self.order.get(at)?)?, at == self.at)))
    }

    fn window(&self) -> Range<usize> {
        self.top..self.top.saturating_add(self.height).min(self.order.len())
    }

    /// The screen has room for so many rows.
    pub(crate) fn resize(&mut self, height: usize) {
        self.height = height.max(1);
        self.follow();
    }

    /// Names as a new look saw them.
    pub(crate) fn replace(&mut self, names: Vec<NameView>) {
        self.names = names;
        self.arrange();
    }

    pub(crate) fn sort_by(&mut self, column: Column) {
        (self.column, self.reversed) = (column, false);
        self.arrange();
    }

    pub(crate) fn reverse(&mut self) {
        self.reversed = !self.reversed;
        self.arrange();
    }

    /// Shows only names, and labels of holders, with this in them.
    pub(crate) fn filter_by(&mut self, filter: String) {
        self.filter = filter;
        self.arrange();
    }

    /// Moves the choice, if it is a key for that.
    pub(crate) fn travel(&mut self, key: KeyCode) {
        let last = self.order.len().saturating_sub(1);
        self.at = match key {
            KeyCode::Down | KeyCode::Char('j') => self.at.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.at.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.at.saturating_add(self.height),
            KeyCode::PageUp => self.at.saturating_sub(self.height),
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            _ => return,
        }
        .min(last);
        self.choose();
        self.follow();
    }

    fn arrange(&mut self) {
        let (names, filter, column) = (&self.names, &self.filter, self.column);
        let passes = |view: &NameView| {
            let label = || view.holders.first().is_some_and(|held| label::of_holder(held).contains(filter.as_str()));
            filter.is_empty() || view.name.as_str().contains(filter.as_str()) || label()
        };
        self.order = (0..names.len()).filter(|at| passes(&names[*at])).collect();
        if column != Column::Name {
            // Stable: names that are alike stay in byte order.
            let turn = column.begins_with_the_largest() != self.reversed;
            self.order.sort_by(|a, b| {
                let order = column.compare(&names[*a], &names[*b]);
                if turn { order.reverse() } else { order }
            });
        } else if self.reversed {
            self.order.reverse();
        }
        let stays = self.chosen.as_ref().and_then(|name| self.order.iter().position(|at| names[*at].name == *name));
        self.at = stays.unwrap_or(self.at).min(self.order.len().saturating_sub(1));
        self.choose();
        self.follow();
    }

    fn choose(&mut self) {
        self.chosen = self.selected().map(|view| view.name.clone());
    }

    /// Moves the screen so that the choice is on it.
    fn follow(&mut self) {
        let lowest = self.at.saturating_add(1).saturating_sub(self.height);
        let highest = self.order.len().saturating_sub(self.height).max(lowest);
        self.top = self.top.clamp(lowest, self.at.max(lowest)).min(highest);
    }
}
