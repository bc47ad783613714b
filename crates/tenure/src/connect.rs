//! One URL picks the store.

use std::path::PathBuf;
use std::sync::Arc;

use crate::backend::Backend;
use crate::backends::memory::MemoryStore;
use crate::clock::{Clock, SystemClock};
use crate::doctor::Checkup;
use crate::error::{Error, ErrorKind, Result, Step};
use crate::redact::redacted;

/// Schemes of stores that exist, and the cargo feature each needs.
const KNOWN: &[(&str, &str)] = &[
    ("memory", "always there"),
    ("sqlite", "sqlite"),
    ("redis", "redis"),
    ("rediss", "redis"),
    ("redis+sentinel", "redis"),
    ("redis+cluster", "redis"),
    ("redlock", "redlock"),
    ("redlocks", "redlock"),
    ("etcd", "etcd"),
    ("zookeeper", "zookeeper"),
    ("postgres", "postgres"),
    ("postgresql", "postgres"),
    ("http", "http"),
    ("https", "http"),
];

/// A client of the store that a URL names, without the engine: for whoever drives claims by itself.
///
/// # Errors
///
/// As [`Tenure::connect`](crate::Tenure::connect).
///
/// # Cancel safety
///
/// Cancel safe: nothing is claimed yet.
pub async fn open(url: &str, clock: Arc<dyn Clock>) -> Result<Arc<dyn Backend>> {
    let invalid = |problem: String| Error::new(ErrorKind::Invalid, problem).at(Step::Connect);
    if url.len() > URL_BYTES_MAX {
        return Err(invalid(format!("a URL of {} bytes is too long: at most {URL_BYTES_MAX}", url.len())));
    }
    let shown = redacted(url);
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(invalid(format!("{shown:?} is not a store's URL: {}", meant(url))));
    };
    let Some((_, feature)) = KNOWN.iter().find(|(known, _)| *known == scheme) else {
        return Err(invalid(format!("{shown:?} names no store that is known: {}", meant(url))));
    };
    let built_in = match *feature {
        "sqlite" => cfg!(all(feature = "sqlite", target_os = "linux")),
        "redis" => cfg!(feature = "redis"),
        "redlock" => cfg!(feature = "redlock"),
        "postgres" => cfg!(feature = "postgres"),
        "etcd" => cfg!(feature = "etcd"),
        "http" => cfg!(feature = "http"),
        "zookeeper" => cfg!(feature = "zookeeper"),
        _ => scheme == "memory",
    };
    if !built_in {
        return Err(not_built(&shown, feature));
    }
    #[cfg(feature = "etcd")]
    if *feature == "etcd" {
        return Ok(Arc::new(
            crate::backends::etcd::EtcdBackend::open(url, clock).await.map_err(|e| e.at(Step::Connect))?,
        ));
    }
    #[cfg(feature = "http")]
    if *feature == "http" {
        return Ok(Arc::new(
            crate::backends::http::HttpBackend::open(url, clock).await.map_err(|e| e.at(Step::Connect))?,
        ));
    }
    #[cfg(feature = "postgres")]
    if *feature == "postgres" {
        return Ok(Arc::new(
            crate::backends::postgres::PostgresBackend::open(url, clock).await.map_err(|e| e.at(Step::Connect))?,
        ));
    }
    #[cfg(feature = "redis")]
    if *feature == "redis" {
        return Ok(Arc::new(
            crate::backends::redis::RedisBackend::open(url, clock).await.map_err(|e| e.at(Step::Connect))?,
        ));
    }
    #[cfg(feature = "redlock")]
    if *feature == "redlock" {
        return Ok(Arc::new(
            crate::backends::redlock::RedlockBackend::open(url, clock).await.map_err(|e| e.at(Step::Connect))?,
        ));
    }
    #[cfg(feature = "zookeeper")]
    if *feature == "zookeeper" {
        return Ok(Arc::new(
            crate::backends::zookeeper::ZookeeperBackend::open(url, clock).await.map_err(|e| e.at(Step::Connect))?,
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

/// Looks at the store a URL names for what makes locks unsafe or slow there, and says what to change.
///
/// As [`Tenure::doctor`](crate::Tenure::doctor), without a client: a fleet (`redlock://`) is looked at node by node
/// and a cluster (`etcd://`) member by member, whether or not enough of them answer or belong together to take a lock
/// there, and nothing is written to a fleet's. Other stores are made ready for use if they never were (a file,
/// tables, znodes).
///
/// # Errors
///
/// As [`Tenure::connect`](crate::Tenure::connect); of a fleet or a cluster only if no node can be looked at.
///
/// # Cancel safety
///
/// Cancel safe: it takes no lock.
pub async fn examine(url: impl AsRef<str>) -> Result<Checkup> {
    let url = url.as_ref();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    #[cfg(feature = "redlock")]
    if url.starts_with("redlock://") || url.starts_with("redlocks://") {
        return crate::backends::redlock::examine(url, clock).await.map_err(|error| error.at(Step::Inspect));
    }
    #[cfg(feature = "etcd")]
    if url.starts_with("etcd://") {
        let found = Box::pin(crate::backends::etcd::examine(url, clock)).await;
        return found.map_err(|error| error.at(Step::Inspect));
    }
    let store = open(url, clock).await?;
    let mut checkup = Checkup::of(&store.guarantees());
    let found = store.examine().await;
    checkup.add(found.map_err(|error| error.at(Step::Inspect).in_store(store.url()))?);
    Ok(checkup)
}

fn not_built(shown: &str, feature: &str) -> Error {
    let message =
        format!("the store of {shown:?} is not built into this tenure: build it with the cargo feature `{feature}`");
    Error::new(ErrorKind::NotBuilt, message).at(Step::Connect)
}

/// What somebody may have meant who wrote a URL of no store.
fn meant(url: &str) -> String {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    let small = scheme.to_ascii_lowercase();
    if scheme != small && KNOWN.iter().any(|(known, _)| *known == small) {
        return format!("write {small}: in small letters");
    }
    let port = rest.split(['/', '?', ',']).next().unwrap_or_default();
    if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) {
        let scheme = PORTS.iter().find(|(usual, _)| *usual == port).map_or("redis", |(_, scheme)| scheme);
        let host = redacted(&format!("{scheme}://{url}"));
        return format!("it begins with what kind of store it is, such as {host}");
    }
    format!("expected {}", examples())
}

/// The ports that servers usually listen on.
const PORTS: &[(&str, &str)] =
    &[("26379", "redis+sentinel"), ("2379", "etcd"), ("2181", "zookeeper"), ("5432", "postgres"), ("7420", "http")];

/// More than any list of hosts needs.
const URL_BYTES_MAX: usize = 8 * 1024;

fn examples() -> &'static str {
    "sqlite:PATH, sqlite: (the embedded store), redis://HOST, rediss://HOST, redis+sentinel://H1,H2,H3/SERVICE, redis+cluster://H1,H2, redlock://H1,H2,H3, etcd://H1,H2,H3, zookeeper://H1,H2,H3/CHROOT, postgres://USER@HOST/DATABASE, http://HOST (a tenure service) or memory:"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_was_left_out_is_named_with_its_feature() {
        let error = not_built(&redacted("etcd://me:secret@host"), "etcd");
        assert_eq!(error.kind(), ErrorKind::NotBuilt);
        let text = error.to_string();
        assert!(text.contains("`etcd`") && !text.contains("secret"), "{text}");
    }
}
