//! Looking at names again and again.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use super::change::Change;
use super::compare::{Look, compare};
use crate::clock::Moment;
use crate::engine::Tenure;
use crate::error::Result;
use crate::machine::NameView;
use crate::name::Name;

/// How far apart two looks are, unless [`Watch::every`] says otherwise.
pub const INTERVAL_DEFAULT: Duration = Duration::from_millis(500);
/// The shortest time between two looks: each reads all names from the store.
pub const INTERVAL_MIN: Duration = Duration::from_millis(20);
/// How many names one look reads at most, in byte order; [`Watch::is_cut`] tells whether there are more.
pub const NAMES_MAX: usize = 65_536;
/// How many names one request asks for.
const PAGE: usize = 1_024;
/// Of how many names that are free now one look asks whether somebody broke them.
const BREAKS_MAX: usize = 64;

/// What changes among the names with a prefix. Made by [`Tenure::watch`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// use std::time::Duration;
/// use tenure::watch::ChangeKind;
/// use tenure::Tenure;
///
/// let tenure = Tenure::connect("memory:").await?;
/// let mut watch = tenure.watch("orders/").every(Duration::from_millis(50));
/// watch.look().await?; // from here on
/// let guard = tenure.lock("orders/42").acquire().await?;
/// let change = watch.next().await?;
/// assert_eq!((change.kind, change.name.as_str()), (ChangeKind::Granted, "orders/42"));
/// # drop(guard);
/// # Ok(()) }
/// ```
///
/// It looks, and compares what it sees with what it saw: what came and went between two looks is not seen, nor who was
/// handed a lease over within one process. A look of many names may take longer than the interval; the next one then
/// begins at once.
pub struct Watch {
    tenure: Tenure,
    prefix: String,
    interval: Duration,
    last: Option<Look>,
    /// When to look again.
    due: Moment,
    /// Whether a look failed since the last one that did not.
    away: bool,
    /// What the last look brought and nobody has asked for yet: no more than the claims of two looks.
    pending: VecDeque<Change>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("prefix", &self.prefix).field("interval", &self.interval).finish_non_exhaustive()
    }
}

impl Tenure {
    /// What changes among the names that begin with `prefix`, as it is seen by looking at them again and again.
    pub fn watch(&self, prefix: impl AsRef<str>) -> Watch {
        Watch {
            tenure: self.clone(),
            prefix: prefix.as_ref().to_owned(),
            interval: INTERVAL_DEFAULT,
            last: None,
            due: Moment(0),
            away: false,
            pending: VecDeque::new(),
        }
    }
}

impl Watch {
    /// Looks this often, but not more often than [`INTERVAL_MIN`].
    #[must_use]
    pub fn every(mut self, interval: Duration) -> Self {
        self.interval = interval.max(INTERVAL_MIN);
        self
    }

    /// Takes all names to be free until now, so that the first look tells everything there is as changes.
    #[must_use]
    pub fn from_empty(mut self) -> Self {
        let clock = self.tenure.clock();
        let now = clock.now();
        self.last = Some(Look { from: now, to: now, wall_micros: clock.wall_micros(), ..Look::default() });
        self
    }

    /// How far apart two looks are.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// The names in use, as the last look saw them, in byte order.
    pub fn names(&self) -> &[NameView] {
        self.last.as_ref().map_or(&[], |look| &look.names)
    }

    /// The changes that looks have brought and that nobody has asked for yet, in order.
    pub fn changes(&mut self) -> impl Iterator<Item = Change> + '_ {
        self.pending.drain(..)
    }

    /// Whether there were more names than the last look read ([`NAMES_MAX`]). Of the others nothing is told.
    pub fn is_cut(&self) -> bool {
        self.last.as_ref().is_some_and(|look| look.cut_after.is_some())
    }

    /// The next change. The first look shows what there is, and is no change.
    ///
    /// # Errors
    ///
    /// Store errors. The next call looks again, after the interval: what is gone by then is lost
    /// ([`ChangeKind::Lost`](super::ChangeKind::Lost)), or has expired.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a change that was not returned is returned by the next call.
    pub async fn next(&mut self) -> Result<Change> {
        loop {
            if let Some(change) = self.pending.pop_front() {
                return Ok(change);
            }
            self.look().await?;
        }
    }

    /// Looks once, when it is time, and answers how many changes there are for [`next`](Self::next) and
    /// [`changes`](Self::changes).
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a look that was not finished has not happened.
    pub async fn look(&mut self) -> Result<usize> {
        self.tenure.pause_until(self.due).await;
        let from = self.tenure.clock().now();
        let read = self.read(from).await;
        self.due = from + self.interval;
        let mut look = match read {
            Ok(look) => look,
            Err(error) => {
                self.away = true;
                return Err(error);
            }
        };
        if let Some(before) = &self.last {
            self.pending.extend(compare(before, &look, self.away));
        }
        // Those of which only a note of a break is left were there to be compared.
        look.names.retain(|view| !view.is_free());
        self.away = false;
        self.last = Some(look);
        Ok(self.pending.len())
    }

    async fn read(&self, from: Moment) -> Result<Look> {
        let mut names: Vec<NameView> = Vec::new();
        let mut cut_after = None;
        loop {
            let after: Option<Name> = names.last().map(|view| view.name.clone());
            let page = self.tenure.list_page(&self.prefix, after, PAGE).await?;
            if page.is_empty() {
                break;
            }
            names.extend(page);
            if names.len() >= NAMES_MAX {
                names.truncate(NAMES_MAX);
                cut_after = names.last().map(|view| view.name.clone());
                break;
            }
        }
        self.add_broken(&mut names).await?;
        let clock = self.tenure.clock();
        Ok(Look { names, cut_after, from, to: clock.now(), wall_micros: clock.wall_micros() })
    }

    /// Adds names that were held at the last look and are free now, if the store has a note that they were broken.
    async fn add_broken(&self, names: &mut Vec<NameView>) -> Result<()> {
        let here = |name: &Name| names.binary_search_by(|view| view.name.cmp(name)).is_ok();
        let held = self.names().iter().filter(|view| !view.holders.is_empty() && !here(&view.name));
        let gone: Vec<Name> = held.map(|view| view.name.clone()).take(BREAKS_MAX).collect();
        for name in gone {
            let view = self.tenure.inspect_exact(&name).await?;
            if view.is_free() && !view.breaks.is_empty() {
                let at = names.partition_point(|other| other.name < name);
                names.insert(at, view);
            }
        }
        Ok(())
    }
}
