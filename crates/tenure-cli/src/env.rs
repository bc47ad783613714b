//! Every environment variable, once.

/// The store, where `--on` is not given; and what the command is given: complete, sqlite paths absolute.
pub(crate) const URL: &str = "TENURE_URL";
/// Given to the command: the name it runs under. Of several this, the token and the owner are unset.
pub(crate) const NAME: &str = "TENURE_NAME";
/// Given to the command: the fencing token; unset where the store has none.
pub(crate) const TOKEN: &str = "TENURE_TOKEN";
/// Given to the command of `elect`: its term, which is the fencing token.
pub(crate) const TERM: &str = "TENURE_TERM";
/// Given to the command: who holds the lock for it.
pub(crate) const OWNER: &str = "TENURE_OWNER";
/// Given to the command: what it and all enclosing runs hold, as JSON ([`held`](crate::held)).
pub(crate) const HELD: &str = "TENURE_HELD";

/// What `--on` said, moved here by [`hide`](crate::hide). Never given to the command.
pub(crate) const ON: &str = "TENURE_ON";

/// A variable as text; empty counts as unset.
pub(crate) fn text(name: &str) -> Result<Option<String>, crate::failure::Failure> {
    match std::env::var(name) {
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(crate::failure::Failure::usage(format!("${name} is not valid UTF-8")))
        }
    }
}
