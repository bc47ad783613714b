//! How many files the service may open, of which each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What is kept for the store's connections, certificates and logs, of as many files as are plenty.
const KEPT_MAX: u64 = 256;
/// The least that is served, however few files there are.
const CONNECTIONS_MIN: usize = 8;

/// Raises the limit as far as the system allows, and answers it; none if there is none.
pub(super) fn raise_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return limit.current;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        Ok(()) => limit.maximum,
        // What is allowed now is what there is.
        Err(_) => limit.current,
    }
}

/// How many connections can be served where so many files may be opened: as many as were asked for, or fewer. A quarter
/// of the files, or as many as are plenty, is for everything else: those at the door, the store, certificates.
pub(super) fn connections_within(files: Option<u64>, asked: usize) -> usize {
    let Some(files) = files else { return asked };
    let most = files - (files / 4).min(KEPT_MAX);
    asked.min(usize::try_from(most).unwrap_or(usize::MAX).max(CONNECTIONS_MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_the_store() {
        assert_eq!(connections_within(None, 16_384), 16_384);
        assert_eq!(connections_within(Some(20_000), 16_384), 16_384);
        assert_eq!(connections_within(Some(1_024), 16_384), 768);
        assert_eq!(connections_within(Some(256), 16_384), 192);
        assert_eq!(connections_within(Some(256), 100), 100);
        assert_eq!(connections_within(Some(4), 100), CONNECTIONS_MIN);
    }
}
