//! The file of tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::caller::{Caller, Right};
use super::secret::SecretHash;

/// The longest name of a token.
const NAME_CHARS_MAX: usize = 128;

/// All tokens of a file:
///
/// ```toml
/// [[token]]
/// name = "orders"
/// sha256 = "…"            # of the secret, as `tenure serve token` prints it
/// may = ["acquire", "read"]
/// prefix = ["orders/"]    # all names without it
/// ```
///
/// A name may have several secrets: add the new one, hand it out, then remove the old one. The rights of all entries of
/// one name must be the same.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    known: Vec<(SecretHash, Caller)>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    token: Vec<Entry>,
}

/// One entry of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Who has it.
    pub name: String,
    /// The SHA-256 of the secret, in hex.
    pub sha256: String,
    /// What it may do.
    pub may: Vec<Right>,
    /// With which names; all of them if there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefix: Vec<String>,
}

impl Entry {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn check_name(name: &str) -> Result<(), String> {
        let fine = !name.is_empty() && name.chars().count() <= NAME_CHARS_MAX && !name.chars().any(char::is_control);
        if fine { Ok(()) } else { Err(format!("{name:?} is no name for a token: 1 to {NAME_CHARS_MAX} characters")) }
    }

    /// As it stands in a file.
    pub fn to_toml(&self) -> String {
        let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
        let list = |items: Vec<String>| items.iter().map(|item| quoted(item)).collect::<Vec<_>>().join(", ");
        let may = list(self.may.iter().map(ToString::to_string).collect());
        let mut text =
            format!("[[token]]\nname = {}\nsha256 = {}\nmay = [{may}]\n", quoted(&self.name), quoted(&self.sha256));
        if !self.prefix.is_empty() {
            text.push_str(&format!("prefix = [{}]\n", list(self.prefix.clone())));
        }
        text
    }
}

impl Tokens {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// What is wrong with it, and where. Never a secret.
    pub fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| format!("{shown} cannot be read: {error}"))?;
        Self::parse(&text).map_err(|problem| format!("{shown}: {problem}"))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.message().to_owned() + &line_of(text, &error))?;
        if file.token.is_empty() {
            return Err(
                "there is no [[token]] in it: nobody could call; `tenure serve token NAME` makes one".to_owned()
            );
        }
        let mut known: Vec<(SecretHash, Caller)> = Vec::new();
        let mut callers: BTreeMap<String, Caller> = BTreeMap::new();
        for entry in file.token {
            Entry::check_name(&entry.name)?;
            let name = &entry.name;
            let hash = SecretHash::parse(&entry.sha256)
                .ok_or_else(|| format!("the sha256 of {name:?} is not 64 hex digits"))?;
            if entry.may.is_empty() {
                return Err(format!("{name:?} may do nothing: give it may = [\"acquire\", \"read\"]"));
            }
            if entry.prefix.iter().any(String::is_empty) {
                return Err(format!("{name:?} has an empty prefix: leave it out to allow all names"));
            }
            let caller =
                Caller { name: entry.name.as_str().into(), rights: entry.may.into(), prefixes: entry.prefix.into() };
            if callers.insert(entry.name.clone(), caller.clone()).is_some_and(|other| other != caller) {
                return Err(format!("two entries of {name:?} have different rights: one name is one user"));
            }
            if known.iter().any(|(other, _)| other.is(&hash)) {
                return Err(format!("the secret of {name:?} is in the file twice"));
            }
            known.push((hash, caller));
        }
        Ok(Self { known })
    }

    /// Whose secret it is.
    pub(crate) fn caller(&self, secret: &str) -> Option<Caller> {
        let hash = SecretHash::of(secret);
        // All of them are looked at, so that the time does not tell which one it was.
        self.known
            .iter()
            .fold(None, |found, (known, caller)| if known.is(&hash) { Some(caller.clone()) } else { found })
    }

    /// The caller of this name.
    pub(crate) fn named(&self, name: &str) -> Option<Caller> {
        self.known.iter().map(|(_, caller)| caller).find(|caller| &*caller.name == name).cloned()
    }

    /// Names of `self` that `other` lacks: their claims can be neither renewed nor released any more.
    pub fn missing_in(&self, other: &Self) -> Vec<String> {
        let names = |tokens: &Self| -> BTreeSet<String> {
            tokens.known.iter().map(|(_, caller)| caller.name.to_string()).collect()
        };
        names(self).difference(&names(other)).cloned().collect()
    }

    /// How many secrets there are.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

fn line_of(text: &str, error: &toml::de::Error) -> String {
    let Some(span) = error.span() else { return String::new() };
    let line = text.get(..span.start).map_or(1, |before| before.matches('\n').count() + 1);
    format!(" (line {line})")
}

#[cfg(test)]
mod tests {
    use super::super::Secret;
    use super::*;

    fn entry(name: &str, secret: &Secret, may: &[Right], prefix: &[&str]) -> String {
        let prefix = prefix.iter().map(|prefix| (*prefix).to_owned()).collect();
        Entry { name: name.to_owned(), sha256: secret.hash().to_string(), may: may.to_vec(), prefix }.to_toml()
    }

    #[test]
    fn what_is_written_is_read() {
        let (old, new) = (Secret::random(), Secret::random());
        let rights = [Right::Acquire, Right::Break];
        let text = entry("a \"b\"", &old, &rights, &["x/", "ÿ\\"]) + &entry("a \"b\"", &new, &rights, &["x/", "ÿ\\"]);
        let tokens = Tokens::parse(&text).unwrap();
        for secret in [&old, &new] {
            let caller = tokens.caller(secret.reveal()).unwrap();
            assert_eq!((&*caller.name, &*caller.rights), ("a \"b\"", &rights[..]));
            assert_eq!(&*caller.prefixes, ["x/".to_owned(), "ÿ\\".to_owned()]);
        }
        assert!(tokens.caller("tenure_nobody").is_none());
    }

    #[test]
    fn a_file_that_is_wrong_is_refused_with_the_reason() {
        let secret = Secret::random();
        let hash = secret.hash();
        let fine = entry("a", &secret, &[Right::Read], &[]);
        for (text, said) in [
            (String::new(), "no [[token]]"),
            ("[[token]]\nname = 1".to_owned(), "line 2"),
            (fine.replace("may", "mey"), "mey"),
            (fine.replace("read", "write"), "write"),
            (fine.replace("[\"read\"]", "[]"), "may do nothing"),
            (fine.clone() + "prefix = [\"\"]", "empty prefix"),
            (fine.replace(&hash.to_string(), "abc"), "64 hex digits"),
            (fine.clone() + &fine, "twice"),
            (fine.clone() + &entry("a", &Secret::random(), &[Right::Break], &[]), "different rights"),
            (fine.replace("\"a\"", "\"\""), "no name for a token"),
        ] {
            let problem = Tokens::parse(&text).unwrap_err();
            assert!(problem.contains(said), "{problem:?} should say {said:?}");
        }
    }

    #[test]
    fn names_that_vanish_are_told() {
        let (a, b) = (Secret::random(), Secret::random());
        let both =
            Tokens::parse(&(entry("a", &a, &[Right::Read], &[]) + &entry("b", &b, &[Right::Read], &[]))).unwrap();
        let one = Tokens::parse(&entry("a", &a, &[Right::Read], &[])).unwrap();
        assert_eq!(both.missing_in(&one), ["b"]);
        assert!(one.missing_in(&both).is_empty());
    }
}
