//! A test that runs in a network of its own, whose packets can be lost.

use std::any::type_name_of_val;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::packets::OwnNetwork;
use super::scratch;
use super::spawn::{Launch, must_be_installed};
use super::wait::wait_at_most;

/// Set for the process that is in the other network: which network it is not to be in.
const OUTER: &str = "TENURE_TESTKIT_OUTER_NETWORK";
/// How long a test may take there.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs the body in a network namespace, where only the loopback is, and nobody else: what it does to the network does
/// not touch the machine's.
///
/// That takes a process of its own. So the test program is run once more, for this test alone, and the body runs there;
/// here, its output is passed on. For that the body must be written in the function that is the test, and be all that
/// this does; the test is a plain one, also for an [async body](in_own_network_async).
///
/// # Panics
///
/// If the body fails there, or there is no `unshare`, `ip` or `nft`, or they may not do it.
pub fn in_own_network(body: impl FnOnce(&OwnNetwork)) {
    if let Some(outer) = std::env::var_os(OUTER) {
        body(&inside(&outer));
    } else {
        run_inside(&test_around(type_name_of_val(&body)));
    }
}

/// [`in_own_network`] on a runtime of its own, with two workers: the body may block a thread.
///
/// # Panics
///
/// As [`in_own_network`] does.
pub fn in_own_network_async(body: impl AsyncFnOnce(&OwnNetwork)) {
    if let Some(outer) = std::env::var_os(OUTER) {
        let network = inside(&outer);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(body(&network));
    } else {
        run_inside(&test_around(type_name_of_val(&body)));
    }
}

fn inside(outer: &OsString) -> OwnNetwork {
    assert_ne!(current().as_os_str(), outer, "this is the network of the machine, which is not to be broken");
    OwnNetwork::begin()
}

fn current() -> PathBuf {
    fs::read_link("/proc/self/ns/net").expect("the network namespace of this process")
}

/// The name of the test that a closure was written in: `program::module::test::{{closure}}`, without both ends.
fn test_around(closure: &str) -> String {
    let (_, path) = closure.split_once("::").unwrap_or_else(|| panic!("{closure} is in no test"));
    path.replace("::{{closure}}", "")
}

/// Runs this test alone, in a network of its own.
fn run_inside(test: &str) {
    must_be_installed(Path::new("unshare"));
    let folder = scratch::directory();
    let program = std::env::current_exe().expect("the path of this test program");
    // As root of a user namespace: so that whoever runs the tests may do it, where the kernel allows that.
    let unshare = ["--user", "--map-root-user", "--net", "--"].map(OsString::from);
    let test_program = ["--exact", test, "--nocapture", "--include-ignored"].map(OsString::from);
    let launch = Launch {
        program: "unshare".into(),
        args: unshare.into_iter().chain([program.into_os_string()]).chain(test_program).collect(),
        env: vec![(OUTER.into(), current().into_os_string()), ("PATH".into(), path_with_system_tools())],
        log: folder.path().join("output"),
    };
    let mut process = launch.spawn();
    let status = wait_at_most(LIMIT, || process.status());
    let output = launch.said();
    print!("{output}");
    let status = status.unwrap_or_else(|| panic!("{test} took longer than {LIMIT:?} in its own network"));
    assert!(status.success(), "{test} failed in its own network ({status}); its output is above");
    // With a wrong name, no test runs, and all is well.
    assert!(output.contains("test result: ok. 1 passed"), "{test} is not the name of one test");
}

/// Debian has `ip` and `nft` where only root looks.
fn path_with_system_tools() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    std::env::join_paths(folders).expect("folders without colons")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_knows_its_test() {
        let name = "servers::own_network::tests::a_body_knows_its_test";
        assert_eq!(test_around(type_name_of_val(&|| ())), name);
        assert_eq!(test_around(type_name_of_val(&async || ())), name);
    }
}
