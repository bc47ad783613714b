//! Which store, and how to reach it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure::{Checkup, ErrorKind, Tenure};

use crate::duration;
use crate::env;
use crate::exit::Exit;
use crate::failure::{Failure, warn};
use crate::signals::Signals;
use crate::wait::{FAREWELL, Wait};

/// How long a store may be out of reach where no `--wait` says so.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// How long a store may be out of reach before that is worth a warning.
const QUIET: Duration = Duration::from_secs(1);
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The store a command works on.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Store {
    url: String,
    /// Whether `$TENURE_URL` named it.
    from_env: bool,
    /// Whether it is the embedded store that is used where none is named.
    is_default: bool,
    /// Which names its metrics tell apart.
    groups: Vec<String>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown())
    }
}

impl Store {
    /// `--on`, else `$TENURE_URL`, else the embedded store. Nothing is opened.
    pub(crate) fn resolve(on: Option<&str>) -> Result<Self, Failure> {
        let hidden = if on.is_none() { env::text(env::ON)? } else { None };
        let on = on.or(hidden.as_deref());
        let set = if on.is_none() { env::text(env::URL)? } else { None };
        let named = on.or(set.as_deref());
        let store = Self {
            url: named.unwrap_or("sqlite:").to_owned(),
            from_env: set.is_some(),
            is_default: named.is_none_or(|url| url == "sqlite:"),
            groups: Vec::new(),
        };
        let url = complete(&store.url).map_err(|failure| store.at_fault(failure))?;
        Ok(Self { url, ..store })
    }

    /// The same, with metrics that tell these names apart.
    pub(crate) fn with_groups(self, groups: &[String]) -> Self {
        Self { groups: groups.to_vec(), ..self }
    }

    /// A failure of this store, which says where its URL came from if it was not on the command line.
    fn at_fault(&self, failure: Failure) -> Failure {
        if self.from_env { failure.of_source(&format!("${}", env::URL)) } else { failure }
    }

    /// Whether no other process can see it.
    pub(crate) fn is_alone(&self) -> bool {
        self.url.starts_with("memory:")
    }

    /// Warns whoever would take a lock here that it excludes nobody.
    pub(crate) fn warn_if_alone(&self, json: bool) {
        if self.is_alone() {
            warn("the store memory: is this process's own: the lock excludes nobody", json);
        }
    }

    /// The URL as another process needs it: with the password, sqlite paths absolute.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The URL as anybody may see it.
    pub(crate) fn shown(&self) -> String {
        tenure::redacted(&self.url)
    }

    /// Whether it is a file that is not there, so that nothing is locked in it.
    pub(crate) fn is_missing(&self) -> bool {
        let file = self.url.strip_prefix("sqlite:").filter(|path| !path.contains('?'));
        file.is_some_and(|path| !Path::new(path).exists())
    }

    /// Waits until its file is there, if it is one: whoever watches a store may begin before it is used.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(crate) async fn until_there(&self, interval: Duration) {
        while self.is_missing() {
            tokio::time::sleep(interval).await;
        }
    }

    /// Connects for what only looks or ends. Where there is no file yet nothing is locked, and none is made: its path
    /// may be mistyped.
    pub(crate) async fn connect_to_look(&self, label: &str, json: bool) -> Result<Tenure, Failure> {
        if !self.is_missing() {
            return self.connect(label, Wait::Forever, json).await;
        }
        if !self.is_default {
            warn(&format!("{}: there is no such file, so nothing is locked there", self.shown()), json);
        }
        let nothing = Self { url: "memory:".to_owned(), ..self.clone() };
        nothing.connect(label, Wait::Forever, json).await
    }

    /// Connects; a store out of reach is tried again as long as `wait` allows, and that is told once.
    pub(crate) async fn connect(&self, label: &str, wait: Wait, json: bool) -> Result<Tenure, Failure> {
        let patience = match wait {
            Wait::Within(limit) => limit,
            Wait::No | Wait::Forever => PATIENCE,
        };
        let started = std::time::Instant::now();
        let (mut before, mut told) = (None, false);
        loop {
            let left = patience.saturating_sub(started.elapsed());
            let mut client = Tenure::builder(&self.url).label(label);
            if !self.groups.is_empty() {
                client = client.metric_groups(&self.groups);
            }
            let error = match tokio::time::timeout(left.max(RETRY_PAUSE), client.connect()).await {
                Ok(Ok(tenure)) => return Ok(tenure),
                Ok(Err(error)) => error,
                // What an attempt that was not cut short has said tells more.
                Err(_) => before.take().unwrap_or_else(|| self.no_answer()),
            };
            let again = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Quorum) && wait != Wait::No;
            if !again || started.elapsed() + RETRY_PAUSE >= patience {
                return Err(self.at_fault(error.into()));
            }
            if !told && started.elapsed() >= QUIET {
                told = true;
                warn(&format!("{error}; trying for {} in all", duration::exact(patience)), json);
            }
            before = Some(error);
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Lets a command that only looks or ends work with a client, and closes it, however the work ended: no session is
    /// left at the store but for those that a claim lives on by.
    pub(crate) async fn with<T>(
        &self,
        label: &str,
        json: bool,
        work: impl AsyncFnOnce(&Tenure) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let tenure = self.connect_to_look(label, json).await?;
        closing(tenure, work).await
    }

    /// The same for a command that goes on until a signal ends it: one that comes while it connects does too.
    pub(crate) async fn with_signals(
        &self,
        label: &str,
        json: bool,
        signals: &mut Signals,
        work: impl AsyncFnOnce(&Tenure, &mut Signals) -> Result<Exit, Failure>,
    ) -> Result<Exit, Failure> {
        match signals.unless_told(self.connect_to_look(label, json)).await {
            Ok(tenure) => closing(tenure?, async |tenure: &Tenure| work(tenure, signals).await).await,
            Err(signal) => Ok(signal),
        }
    }

    /// Looks at the store for what makes locks unsafe or slow there.
    pub(crate) async fn examine(&self) -> Result<Checkup, Failure> {
        self.ask(tenure::examine(&self.url)).await.map_err(|failure| self.at_fault(failure))
    }

    /// Awaits a request that is not part of an acquire, as long as a store may be out of reach.
    pub(crate) async fn ask<T>(&self, request: impl Future<Output = tenure::Result<T>>) -> Result<T, Failure> {
        match tokio::time::timeout(PATIENCE, request).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(self.no_answer().into()),
        }
    }

    fn no_answer(&self) -> tenure::Error {
        tenure::Error::new(ErrorKind::Unavailable, "the store did not answer").in_store(self.shown())
    }
}

/// Makes an sqlite path absolute and canonical, so that it means the same file in any directory, and the same
/// text however it was written.
fn complete(url: &str) -> Result<String, Failure> {
    let Some(location) = url.strip_prefix("sqlite:") else { return Ok(with_absolute_files(url)) };
    if location.contains('?') || (location.starts_with("//") && !location.starts_with("///")) {
        // Options, or a host: the library says what is known.
        return Ok(url.to_owned());
    }
    let path = if location.is_empty() { tenure::default_path()? } else { PathBuf::from(location) };
    let absolute =
        canonical(&path).map_err(|error| Failure::usage(format!("{url:?} has no absolute path: {error}")))?;
    match absolute.to_str() {
        Some(path) => Ok(format!("sqlite:{path}")),
        None => Err(Failure::usage(format!("the path of {url:?} is not valid UTF-8: {}", absolute.display()))),
    }
}

/// The options of a URL that name files.
const FILES: [&str; 4] = ["ca", "cert", "key", "sslrootcert"];

/// The files that a URL's options name, so that they are the same in any directory.
fn with_absolute_files(url: &str) -> String {
    let Some((place, options)) = url.split_once('?') else { return url.to_owned() };
    let absolute = |option: &str| match option.split_once('=') {
        Some((name, path)) if FILES.contains(&name) && !path.is_empty() && !path.starts_with(['/', '%']) => {
            let here = std::env::current_dir().ok().and_then(|here| here.to_str().map(encoded));
            here.map_or_else(|| option.to_owned(), |here| format!("{name}={here}/{path}"))
        }
        _ => option.to_owned(),
    };
    format!("{place}?{}", options.split('&').map(absolute).collect::<Vec<_>>().join("&"))
}

/// A path as an option carries it.
fn encoded(path: &str) -> String {
    let special = |c: char| matches!(c, '%' | '&' | '#' | '+' | ' ' | '?');
    path.chars().map(|c| if special(c) { format!("%{:02X}", c as u32) } else { c.to_string() }).collect()
}

/// The canonical form of a path that need not exist: of its deepest part that does, and the rest as it is.
fn canonical(path: &Path) -> std::io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    for ancestor in absolute.ancestors() {
        if let Ok(real) = ancestor.canonicalize() {
            let rest = absolute.strip_prefix(ancestor).unwrap_or(Path::new(""));
            // Joining nothing would leave a slash at the end.
            return Ok(if rest.as_os_str().is_empty() { real } else { real.join(rest) });
        }
    }
    Ok(absolute)
}

async fn closing<T>(tenure: Tenure, work: impl AsyncFnOnce(&Tenure) -> Result<T, Failure>) -> Result<T, Failure> {
    let outcome = work(&tenure).await;
    // What is not closed by then ends by itself.
    let _ = tokio::time::timeout(FAREWELL, tenure.close()).await;
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlite_paths_become_canonical_and_other_urls_stay() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(&real, real.join("link")).unwrap();
        let written = format!("sqlite:{}/link/new/../a.db", real.display());
        // `..` behind a part that does not exist is not resolved, as the kernel would not either.
        assert!(complete(&written).unwrap().starts_with("sqlite:/"));
        let written = format!("sqlite:{}/link/a.db", real.display());
        assert_eq!(complete(&written).unwrap(), format!("sqlite:{}/a.db", real.display()));
        assert_eq!(complete("redis://u:p@h").unwrap(), "redis://u:p@h");
        assert_eq!(complete("sqlite:/a?b=c").unwrap(), "sqlite:/a?b=c");
    }

    #[test]
    fn files_that_a_url_names_are_the_same_in_any_directory() {
        let here = encoded(std::env::current_dir().unwrap().to_str().unwrap());
        assert_eq!(
            complete("etcd://h?prefix=a/&tls=true&ca=ca.pem&cert=/c.pem&key=").unwrap(),
            format!("etcd://h?prefix=a/&tls=true&ca={here}/ca.pem&cert=/c.pem&key=")
        );
        assert_eq!(encoded("/a b/100%&c"), "/a%20b/100%25%26c");
    }
}
