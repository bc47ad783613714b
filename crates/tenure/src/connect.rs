//! One URL picks the store.

use std::path::PathBuf;
use std::sync::Arc;

use crate::backend::Backend;
use crate::backends::memory::MemoryStore;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result, Step};

/// Schemes of stores that exist, and the cargo feature each needs.
const KNOWN: &[(&str, &str)] = &[
    ("memory", "always there"),
    ("sqlite", "sqlite"),
    ("redis", "redis"),
    ("rediss", "redis"),
    ("redis+sentinel", "redis"),
    ("redis+cluster", "redis"),
    ("redlock", "redlock"),
    ("etcd", "etcd"),
    ("zookeeper", "zookeeper"),
    ("postgres", "postgres"),
    ("postgresql", "postgres"),
];

/// Opens the store a URL names.
pub(crate) async fn open(url: &str, clock: Arc<dyn Clock>) -> Result<Arc<dyn Backend>> {
    let invalid = |problem: String| Error::new(ErrorKind::Invalid, problem).at(Step::Connect);
    let shown = redacted(url);
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(invalid(format!("{shown:?} is not a store's URL: expected {}", examples())));
    };
    let Some((_, feature)) = KNOWN.iter().find(|(known, _)| *known == scheme) else {
        return Err(invalid(format!("{shown:?} names the unknown store {scheme:?}: expected {}", examples())));
    };
    let built_in = match *feature {
        "sqlite" => cfg!(all(feature = "sqlite", target_os = "linux")),
        "redis" => cfg!(feature = "redis"),
        _ => scheme == "memory",
    };
    if !built_in {
        let message = format!("the store of {shown:?} is not built into this tenure (cargo feature `{feature}`)");
        return Err(Error::new(ErrorKind::NotBuilt, message).at(Step::Connect));
    }
    #[cfg(feature = "redis")]
    if *feature == "redis" {
        return Ok(Arc::new(
            crate::backends::redis::RedisBackend::open(url, clock).await.map_err(|e| e.at(Step::Connect))?,
        ));
    }
    let (location, options) = rest.split_once('?').unwrap_or((rest, ""));
    if let Some(option) = options.split('&').find(|option| !option.is_empty()) {
        let option = option.split_once('=').map_or(option, |(key, _)| key);
        return Err(invalid(format!("{shown:?} has the unknown option {option:?}: {scheme}: takes none")));
    }
    if location.starts_with("//") && !location.starts_with("///") {
        // Elsewhere two slashes introduce a host; here they would name a file in the root directory.
        return Err(invalid(format!(
            "{shown:?} has no host: write {scheme}:PATH, such as {scheme}:/var/lib/app/locks.db"
        )));
    }
    match scheme {
        "memory" if location.is_empty() => Ok(Arc::new(MemoryStore::on(clock).client())),
        "memory" => Ok(Arc::new(MemoryStore::named(location).client())),
        #[cfg(all(feature = "sqlite", target_os = "linux"))]
        _ => {
            let path = if location.is_empty() { default_path()? } else { PathBuf::from(location) };
            Ok(Arc::new(crate::backends::sqlite::SqliteBackend::open(path, clock).await?))
        }
        #[cfg(not(all(feature = "sqlite", target_os = "linux")))]
        _ => Err(invalid(format!("{shown:?} cannot be opened"))),
    }
}

fn examples() -> &'static str {
    "sqlite:PATH, sqlite: (the embedded store), redis://HOST or memory:"
}

/// The embedded store's default file: `tenure/locks.db` in `$XDG_STATE_HOME`, or in `~/.local/state`.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if neither `$XDG_STATE_HOME` nor `$HOME` is an absolute path.
pub fn default_path() -> Result<PathBuf> {
    let absolute = |key: &str| std::env::var_os(key).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    let state = state.ok_or_else(|| {
        Error::new(
            ErrorKind::Invalid,
            "no place for the embedded store: set HOME or XDG_STATE_HOME to an absolute path, or name one as sqlite:PATH",
        )
    })?;
    Ok(state.join("tenure").join("locks.db"))
}

/// A URL without its password, for messages.
///
/// ```
/// assert_eq!(tenure::redacted("redis://user:secret@host/0"), "redis://user:***@host/0");
/// ```
pub fn redacted(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    // Whatever a password holds, the last @ ends it; rather too much hidden than too little.
    let hidden = rest.rfind('@').and_then(|at| Some((rest[..at].find(':')?, at)));
    let shown = match hidden {
        Some((colon, at)) => format!("{}:***{}", &rest[..colon], &rest[at..]),
        None => rest.to_owned(),
    };
    match shown.split_once('?') {
        Some((place, query)) => {
            let options: Vec<String> = query.split('&').map(without_secret).collect();
            format!("{scheme}://{place}?{}", options.join("&"))
        }
        None => format!("{scheme}://{shown}"),
    }
}

fn without_secret(option: &str) -> String {
    match option.split_once('=') {
        Some((key, _)) if is_secret(key) => format!("{key}=***"),
        _ => option.to_owned(),
    }
}

fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ["pass", "pwd", "auth", "secret", "token", "key"].iter().any(|word| key.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_never_shown() {
        for (url, shown) in [
            ("redis://:secret@host:6379", "redis://:***@host:6379"),
            ("redis://user:se:c@ret@host,other/0?x=y", "redis://user:***@host,other/0?x=y"),
            ("redis://user:se/cret@host", "redis://user:***@host"),
            ("redis://u:a?b@host", "redis://u:***@host"),
            ("redis://u:p@ss?word@host", "redis://u:***@host"),
            ("redis://u:p@ss/wo@rd@host", "redis://u:***@host"),
            ("postgres://h/db?password=abc@def&pwd=x", "postgres://h/db?password=***&pwd=***"),
            ("postgres://h/db?password=s3cret&x=y", "postgres://h/db?password=***&x=y"),
            ("redis://user@host", "redis://user@host"),
            ("redis://host", "redis://host"),
            ("sqlite:/a:b@c", "sqlite:/a:b@c"),
        ] {
            assert_eq!(redacted(url), shown);
        }
    }
}
