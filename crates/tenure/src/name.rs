//! What is locked.

use std::fmt;
use std::hash::{BuildHasher as _, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, ErrorKind};

/// The longest name, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 512;

/// The name of a lock: UTF-8, 1 to 512 bytes, no control characters.
///
/// `/` groups names (`orders/42`); nothing else in a name has a meaning. Cloning is cheap.
///
/// ```
/// use tenure::Name;
///
/// assert_eq!(Name::new("orders/42")?.as_str(), "orders/42");
/// assert!(Name::new("").is_err());
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone)]
pub struct Name {
    text: Arc<str>,
    /// Of the text, under a seed of this process: a name is looked up far more often than it is made, a hundred
    /// thousand times in three seconds to renew as many leases, and this spares each look-up the reading of it.
    hash: u64,
}

impl Name {
    /// Checks and wraps a name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for an empty name, one longer than 512 bytes, or one with a control
    /// character.
    pub fn new(name: impl AsRef<str>) -> Result<Self, Error> {
        let name = name.as_ref();
        let problem = if name.is_empty() {
            "is empty".to_owned()
        } else if name.len() > NAME_BYTES_MAX {
            format!("has {} bytes", name.len())
        } else if let Some(control) = name.chars().find(|c| c.is_control()) {
            format!("has the control character {}", control.escape_default())
        } else {
            return Ok(Self::of(name));
        };
        Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "the name {} {problem}: a name is 1 to {NAME_BYTES_MAX} bytes of UTF-8 without control characters",
                shortened(name)
            ),
        ))
    }

    /// Stands in for a name that is none; never sent.
    pub(crate) fn placeholder() -> Self {
        Self::of("?")
    }

    fn of(name: &str) -> Self {
        static SEED: OnceLock<RandomState> = OnceLock::new();
        let hash = SEED.get_or_init(RandomState::default).hash_one(name);
        Self { text: Arc::from(name), hash }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// A quoted form for messages: a refused name may be a megabyte long.
fn shortened(name: &str) -> String {
    const SHOWN: usize = 40;
    if name.chars().count() <= SHOWN {
        return format!("{name:?}");
    }
    let start: String = name.chars().take(SHOWN).collect();
    format!("{start:?}…")
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        // A renewal carries the very name its claim was made with: no need to read it.
        self.hash == other.hash && (Arc::ptr_eq(&self.text, &other.text) || self.text == other.text)
    }
}

impl Eq for Name {}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.text.cmp(&other.text)
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::new(text).map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_printable_utf8_is_a_name() {
        for name in ["a", "orders/42", "it's {a} \"name\" . with spaces", "läger/中文", &"x".repeat(512)] {
            assert_eq!(Name::new(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn a_refusal_names_the_value_and_what_is_allowed() {
        let message = Name::new("a\nb").unwrap_err().to_string();
        assert!(message.contains(r#""a\nb""#) && message.contains("1 to 512 bytes"), "{message}");
        let message = Name::new("x".repeat(513)).unwrap_err().to_string();
        assert!(message.contains("513 bytes") && message.len() < 250, "{message}");
        assert!(Name::new("").is_err());
        assert!(Name::new("\u{85}").is_err(), "C1 controls too");
    }
}
