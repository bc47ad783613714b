//! The directories servers work in.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

/// All directories of this process, and who removes them after it.
struct Scratch {
    root: PathBuf,
    /// Waits for the end of its standard input, which is ours alone to hold: however this process ends, it
    /// cleans up. The servers in statics are never dropped, and a process that is killed drops nothing.
    _janitor: Child,
}

/// A new directory: gone when dropped, or else when the process ends.
pub(super) fn directory() -> TempDir {
    tempfile::Builder::new().prefix("server-").tempdir_in(root()).expect("a directory for a server")
}

/// Where the directories of this process are.
fn root() -> &'static Path {
    static SCRATCH: OnceLock<Scratch> = OnceLock::new();
    &SCRATCH.get_or_init(Scratch::new).root
}

impl Scratch {
    fn new() -> Self {
        let root = tempfile::Builder::new().prefix("tenure-servers-").tempdir().expect("a directory").keep();
        // Twice, as a server that is about to die may write something in between.
        let clean = r#"read -r _; rm -rf -- "$0" || { sleep 1; rm -rf -- "$0"; }"#;
        let janitor = Command::new("sh")
            .args(["-c", clean])
            .arg(&root)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Out of reach of the Ctrl-C that ends the tests.
            .process_group(0)
            .spawn()
            .expect("cannot run sh");
        Self { root, _janitor: janitor }
    }
}
