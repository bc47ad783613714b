//! The stores that the tests use.

use std::time::Duration;

use tempfile::TempDir;
use tenure::blocking::Tenure;
use tenure_testkit::servers::shared;

/// A ttl that does not run out during a test: what is free before was released.
pub(crate) const LONG: Duration = Duration::from_secs(600);
/// How long something that must happen is waited for.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

pub(crate) struct Store {
    pub(crate) url: String,
    test: &'static str,
    _folder: Option<TempDir>,
}

impl Store {
    /// A client, whose names are the test's own.
    pub(crate) fn connect(&self) -> Tenure {
        Tenure::builder(&self.url).prefix(format!("{}/", self.test)).ttl(LONG).connect().unwrap()
    }
}

pub(crate) fn stores(test: &'static str) -> [Store; 3] {
    [Store { url: format!("memory:{test}"), test, _folder: None }, sqlite(test), redis(test)]
}

pub(crate) fn sqlite(test: &'static str) -> Store {
    let folder = tempfile::tempdir().unwrap();
    Store { url: format!("sqlite:{}", folder.path().join("locks.db").display()), test, _folder: Some(folder) }
}

pub(crate) fn redis(test: &'static str) -> Store {
    Store { url: shared::redis().url().to_owned(), test, _folder: None }
}
