//! What the sources promise of themselves.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The sources of the library below a folder.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    sources_below(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(folder))
}

fn sources_below(root: PathBuf) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push((path.clone(), std::fs::read_to_string(path).unwrap()));
            }
        }
    }
    assert!(!found.is_empty());
    found
}

/// The doc comment that stands right above a line.
fn docs_above(source: &str, line: usize) -> String {
    let lines: Vec<&str> = source.lines().collect();
    let above = lines[..line].iter().rev().take_while(|line| {
        let line = line.trim_start();
        line.starts_with("///") || line.starts_with("#[")
    });
    above.copied().collect()
}

#[test]
fn every_public_async_function_says_what_cancelling_does() {
    let mut seen = 0;
    for (path, source) in sources("") {
        for (number, line) in source.lines().enumerate() {
            let is_call = line.trim_start().starts_with("fn ") && line.contains("-> Call<") && line.ends_with(';');
            if line.trim_start().starts_with("pub async fn ") || is_call {
                seen += 1;
                let docs = docs_above(&source, number);
                assert!(docs.contains("# Cancel safety"), "{}:{}: {line}", path.display(), number + 1);
            }
        }
    }
    assert!(seen > 15, "{seen}");
}

#[test]
fn layers_do_not_reach_upwards() {
    let absent = |folder: &str, words: &[&str]| {
        for (path, source) in sources(folder) {
            for word in words {
                assert!(!source.contains(word), "{} names {word}", path.display());
            }
        }
    };
    absent("machine", &["std::time::Instant", "SystemTime", "rand::", "tokio", "std::fs", "std::net", "crate::engine"]);
    absent("engine", &["crate::backends"]);
    absent("backends", &["crate::engine"]);
    absent("", &["unsafe {", "unsafe fn"]);
}

/// The names of the public methods of each type, by its `impl` blocks; traits apart.
fn methods(sources: &[(PathBuf, String)]) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (_, source) in sources {
        let mut within: Option<&str> = None;
        for line in source.lines() {
            if let Some(implemented) = line.strip_prefix("impl") {
                within = (!line.contains(" for ")).then(|| implementing(implemented));
            } else if line == "}" {
                within = None;
            }
            let function = ["    pub fn ", "    pub async fn "].iter().find_map(|begin| line.strip_prefix(begin));
            if let (Some(of), Some(function)) = (within, function) {
                let name = function.split(['(', '<']).next().unwrap();
                found.entry(of.to_owned()).or_default().insert(name.to_owned());
            }
        }
    }
    found
}

/// The type of an `impl`, without what either is generic over.
fn implementing(rest: &str) -> &str {
    let rest = if rest.starts_with('<') { rest.split_once("> ").unwrap().1 } else { rest.trim_start() };
    rest.split(|c: char| !c.is_alphanumeric()).next().unwrap()
}

/// What a `pub use MODULE::{…};` of a file names.
fn exported(source: &str, module: &str) -> Vec<String> {
    let begin = format!("pub use {module}::");
    let names = source.split(';').filter_map(|statement| Some(statement.split_once(&begin)?.1));
    let names = names.flat_map(|names| names.trim_matches(['{', '}']).split(','));
    names.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

/// Whoever adds to the async API adds to the other one.
#[test]
fn the_blocking_api_has_all_that_the_async_one_has() {
    // Values, which are the same in both.
    const VALUES: &[&str] = &["CachedError", "Lease", "TTL_DEFAULT", "TTL_MAX", "TTL_MIN", "WaitStrategy"];
    // Recipes that have no blocking form yet, and what makes them.
    const ASYNC_ONLY: &[&str] = &["Attempt", "Begun", "Election", "Leaders", "Leadership", "Once"];
    const MAKERS: &[&str] = &["election", "once"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let is_async = |path: &Path| !["blocking", "backends"].iter().any(|folder| path.starts_with(root.join(folder)));
    let of_async: Vec<_> = sources("").into_iter().filter(|(path, _)| is_async(path)).collect();
    let (of_async, blocking) = (methods(&of_async), methods(&sources("blocking")));

    let library = std::fs::read_to_string(root.join("lib.rs")).unwrap();
    let types = ["engine", "recipes", "watch"].iter().flat_map(|module| exported(&library, module));
    let types: Vec<String> =
        types.filter(|name| !VALUES.contains(&&**name) && !ASYNC_ONLY.contains(&&**name)).collect();
    assert!(types.len() >= 10, "{types:?}");
    for name in types {
        let present = blocking.get(&name).cloned().unwrap_or_default();
        // What has no methods is a value.
        let Some(wanted) = of_async.get(&name) else { continue };
        let missing = wanted.difference(&present).filter(|method| !MAKERS.contains(&method.as_str()));
        let missing: Vec<_> = missing.collect();
        // A watch is an iterator there.
        let missing: Vec<_> = missing.into_iter().filter(|method| (&*name, &***method) != ("Watch", "next")).collect();
        assert!(
            missing.is_empty(),
            "tenure::blocking::{name} lacks {missing:?}; if {name} is a value, list it in VALUES"
        );
    }
}

/// `scripts/night` and `scripts/interop` run what is ignored; nothing else does.
#[test]
fn every_ignored_test_says_which_script_runs_it() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let attribute = concat!("#[", "ignore");
    let mut seen = 0;
    for (path, source) in sources_below(crates.to_owned()) {
        for line in source.lines().map(str::trim_start).filter(|line| line.starts_with(attribute)) {
            seen += 1;
            let is_interop = path.starts_with(crates.join("tenure-cli/tests/interop"));
            let script = if is_interop { " = \"interop: " } else { " = \"night: " };
            assert!(line[attribute.len()..].starts_with(script), "{}: {line}", path.display());
        }
    }
    assert!(seen > 10, "{seen}");
}

#[test]
fn futures_and_guards_go_between_threads() {
    fn is_send<T: Send>(_: &T) {}
    fn is_send_sync<T: Send + Sync>() {}
    is_send_sync::<tenure::Tenure>();
    is_send_sync::<tenure::Lock>();
    is_send_sync::<tenure::Guard>();
    is_send_sync::<tenure::Session>();
    is_send_sync::<tenure::Error>();
    let _ = |lock: &tenure::Lock, guard: tenure::Guard, tenure: &tenure::Tenure| {
        is_send(&lock.acquire());
        is_send(&lock.try_acquire());
        is_send(&lock.acquire_within(std::time::Duration::ZERO));
        is_send(&guard.lost());
        is_send(&guard.protect(async {}));
        is_send(&guard.release());
        is_send(&tenure.close());
        is_send(&tenure.list(""));
        let keep = std::time::Duration::ZERO;
        is_send(&tenure.cached("", keep, || async { Ok::<_, std::io::Error>("") }));
    };
}
