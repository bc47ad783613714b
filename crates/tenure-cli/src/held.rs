//! `$TENURE_HELD`: what enclosing runs hold, passed down so that nested runs re-enter instead of deadlocking.

use serde::{Deserialize, Serialize};
use tenure::{ClaimId, Name, Owner, Token};

use crate::env;
use crate::failure::Failure;
use crate::run::Hold;

/// One enclosing run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The store, without a password.
    pub(crate) url: String,
    pub(crate) name: Name,
    pub(crate) owner: Owner,
    pub(crate) claim: ClaimId,
    pub(crate) token: Option<Token>,
}

/// All enclosing runs, the outermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Held(Vec<Entry>);

impl Held {
    /// Reads it from the environment.
    pub(crate) fn from_env() -> Result<Self, Failure> {
        env::text(env::HELD)?.map_or_else(|| Ok(Self::default()), |text| Self::parse(&text))
    }

    fn parse(text: &str) -> Result<Self, Failure> {
        serde_json::from_str(text).map_err(|error| {
            let start: String = text.chars().take(60).collect();
            Failure::usage(format!("${} is not what an enclosing run would set: {start:?}: {error}", env::HELD))
                .hint(format!("unset {} if no `tenure run` encloses this one", env::HELD))
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The innermost enclosing run of this name on this store.
    pub(crate) fn of(&self, url: &str, name: &Name) -> Option<&Entry> {
        self.0.iter().rev().find(|entry| entry.url == url && entry.name == *name)
    }

    /// The owners of all enclosing runs, each once.
    pub(crate) fn owners(&self) -> Vec<Owner> {
        let mut owners: Vec<Owner> = Vec::new();
        for entry in &self.0 {
            if !owners.contains(&entry.owner) {
                owners.push(entry.owner.clone());
            }
        }
        owners
    }

    /// What a command under this hold is told.
    pub(crate) fn and(mut self, url: String, hold: &Hold) -> Self {
        self.0.push(Entry {
            url,
            name: hold.name().clone(),
            owner: hold.owner().clone(),
            claim: hold.claim_id(),
            token: hold.token(),
        });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r#"[{"url":"sqlite:/a","name":"x","owner":"o1","claim":"00000000000000ff","token":7},
        {"url":"sqlite:/a","name":"x","owner":"o2","claim":"0000000000000001","token":null}]"#;

    #[test]
    fn the_innermost_run_of_a_name_counts() {
        let held = Held::parse(TWO).unwrap();
        let x = Name::new("x").unwrap();
        assert_eq!(held.of("sqlite:/a", &x).unwrap().owner, Owner::new("o2").unwrap());
        assert_eq!(held.of("sqlite:/b", &x), None);
        assert_eq!(held.owners().len(), 2);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for bad in ["{", "{}", r#"[{"url":"a"}]"#, r#"[{"url":"a","name":"x","owner":"a b","claim":"0","token":1}]"#] {
            let failure = Held::parse(bad).unwrap_err();
            assert_eq!(failure.exit, crate::exit::Exit::Usage);
            assert!(failure.to_string().contains("TENURE_HELD"), "{failure}");
        }
    }
}
