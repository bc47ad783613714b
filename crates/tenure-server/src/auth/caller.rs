//! One caller and its rights.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tenure::Name;
use utoipa::ToSchema;

use crate::problem::{Answer, Problem};

/// What a caller may do with the names that it may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Right {
    /// Acquire, renew and release.
    Acquire,
    /// See who holds and who waits, events and history.
    Read,
    /// End others' claims.
    Break,
    /// All of these.
    Admin,
}

impl Right {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Acquire, Self::Read, Self::Break, Self::Admin];

    fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Read => "read",
            Self::Break => "break",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Right {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|right| right.as_str() == text);
        found.ok_or_else(|| format!("{text:?} is no right: acquire, read, break or admin"))
    }
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The name of its token; empty where no tokens are asked for.
    pub(crate) name: Arc<str>,
    pub(crate) rights: Arc<[Right]>,
    /// What the names that it may touch begin with; all names if there is none.
    pub(crate) prefixes: Arc<[String]>,
}

impl Caller {
    /// Anybody, where nobody is asked.
    pub(crate) fn anybody() -> Self {
        Self { name: "".into(), rights: Right::ALL.into(), prefixes: [].into() }
    }

    /// Somebody who has not said who it is, where that is not asked.
    pub(crate) fn nobody() -> Self {
        Self { name: "".into(), rights: [].into(), prefixes: [].into() }
    }

    /// For people.
    pub(crate) fn shown(&self) -> &str {
        if self.name.is_empty() { "anybody" } else { &self.name }
    }

    fn touches(&self, name: &str) -> bool {
        self.prefixes.is_empty() || self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }

    fn has(&self, right: Right) -> bool {
        self.rights.contains(&right) || self.rights.contains(&Right::Admin)
    }

    /// Whether it has a right to a name.
    pub(crate) fn may(&self, right: Right, name: &str) -> bool {
        self.has(right) && self.touches(name)
    }

    /// Refuses unless it has the right to the name.
    pub(crate) fn needs(&self, right: Right, name: &Name) -> Answer<()> {
        self.needs_any(right)?;
        if self.touches(name.as_str()) {
            return Ok(());
        }
        let allowed = self.prefixes.join(", ");
        Err(Problem::forbidden(format!("{} may {right} only names that begin with {allowed}", self.shown())))
    }

    /// Refuses unless it has the right to some names.
    pub(crate) fn needs_any(&self, right: Right) -> Answer<()> {
        if self.has(right) {
            return Ok(());
        }
        Err(Problem::forbidden(format!("{} may not {right}", self.shown()))
            .hint(format!("give its token the right to {right} in the file of tokens")))
    }

    /// Refuses unless it may read all names.
    pub(crate) fn needs_all(&self) -> Answer<()> {
        self.needs_any(Right::Read)?;
        if self.prefixes.is_empty() {
            return Ok(());
        }
        Err(Problem::forbidden(format!("{} may read some names only, and this tells of all", self.shown())))
    }

    /// Which prefixes to list for someone who asks for names with `prefix`: within its own.
    pub(crate) fn within(&self, prefix: &str) -> Vec<String> {
        if self.touches(prefix) {
            return vec![prefix.to_owned()];
        }
        let narrower = self.prefixes.iter().filter(|own| own.starts_with(prefix)).cloned();
        let mut narrower: Vec<String> = narrower.collect();
        narrower.sort_unstable();
        // One that begins with another is listed with it.
        narrower.dedup_by(|later, earlier| later.starts_with(earlier.as_str()));
        narrower
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(rights: &[Right], prefixes: &[&str]) -> Caller {
        let prefixes: Vec<String> = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
        Caller { name: "me".into(), rights: rights.into(), prefixes: prefixes.into() }
    }

    #[test]
    fn rights_and_prefixes_are_both_needed() {
        let name = |name: &str| Name::new(name).unwrap();
        let me = caller(&[Right::Acquire], &["orders/", "jobs/"]);
        assert!(me.needs(Right::Acquire, &name("orders/1")).is_ok());
        assert!(me.needs(Right::Acquire, &name("jobs/1")).is_ok());
        assert!(me.needs(Right::Acquire, &name("order")).is_err());
        assert!(me.needs(Right::Read, &name("orders/1")).is_err());
        assert!(me.needs_all().is_err());
        assert!(caller(&[Right::Read], &[]).needs_all().is_ok());
    }

    #[test]
    fn a_listing_stays_within_the_prefixes() {
        let me = caller(&[Right::Read], &["orders/", "jobs/", "orders/eu/"]);
        assert_eq!(me.within(""), ["jobs/", "orders/"]);
        assert_eq!(me.within("orders/4"), ["orders/4"]);
        assert_eq!(me.within("ord"), ["orders/"]);
        assert!(me.within("x").is_empty());
        assert_eq!(caller(&[Right::Read], &[]).within("x"), ["x"]);
    }
}
