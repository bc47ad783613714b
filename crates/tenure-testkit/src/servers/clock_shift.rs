//! A wall clock that a test sets, for one server.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use super::scratch;
use super::spawn::must_be_installed;

/// Names the file for [`SHIM`].
const FILE: &str = "TENURE_CLOCK_SHIFT";
/// What is mapped of it, and so how long it must be.
const PAGE_BYTES: usize = 4096;

/// Shifts the wall clock of the process it is loaded into by as many nanoseconds as a file says, read at every look.
/// System calls of its own, neither `dlsym` nor `malloc`: Redis's allocator looks at the clock.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <time.h>
#include <sys/time.h>
#include <sys/syscall.h>
#include <sys/mman.h>
#include <unistd.h>
#include <fcntl.h>
#include <stdlib.h>
#include <stdint.h>
static volatile int64_t *shift; static int64_t zero;
static int64_t get(void) {
  if (!shift) {
    const char *file = getenv("TENURE_CLOCK_SHIFT");
    int fd = file ? open(file, O_RDONLY) : -1;
    void *map = fd < 0 ? MAP_FAILED : mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 0);
    shift = map == MAP_FAILED ? &zero : map;
    if (fd >= 0) close(fd);
  }
  return *shift;
}
static void add(struct timespec *t) {
  int64_t n = (int64_t)t->tv_sec * 1000000000LL + t->tv_nsec + get();
  t->tv_sec = n / 1000000000LL; t->tv_nsec = n % 1000000000LL;
}
int clock_gettime(clockid_t c, struct timespec *t) {
  int r = syscall(SYS_clock_gettime, c, t);
  if (!r && (c == CLOCK_REALTIME || c == CLOCK_REALTIME_COARSE)) add(t);
  return r;
}
int gettimeofday(struct timeval *v, void *z) {
  struct timespec t; int r = syscall(SYS_clock_gettime, CLOCK_REALTIME, &t);
  add(&t); v->tv_sec = t.tv_sec; v->tv_usec = t.tv_nsec / 1000;
  return r;
}
time_t time(time_t *o) {
  struct timespec t; syscall(SYS_clock_gettime, CLOCK_REALTIME, &t);
  add(&t); if (o) *o = t.tv_sec;
  return t.tv_sec;
}
"#;

/// How far the clock of one server is off: a file that the server reads.
pub(super) struct ClockShift {
    file: PathBuf,
}

impl ClockShift {
    /// Not off, until told.
    pub(super) fn make(folder: &Path) -> Self {
        let file = folder.join("clock-shift");
        fs::write(&file, [0; PAGE_BYTES]).expect("the clock's shift");
        Self { file }
    }

    /// What the server's environment needs.
    pub(super) fn env(&self) -> [(OsString, OsString); 2] {
        [("LD_PRELOAD".into(), library().into()), (FILE.into(), self.file.clone().into())]
    }

    pub(super) fn set(&self, seconds: i64) {
        let nanoseconds = seconds.checked_mul(1_000_000_000).expect("a shift of less than 292 years");
        let file = File::options().write(true).open(&self.file).expect("the clock's shift");
        // In place, and in one piece: the server has it mapped.
        file.write_all_at(&nanoseconds.to_ne_bytes(), 0).expect("the clock's shift");
    }
}

/// [`SHIM`], compiled; once for each process.
fn library() -> PathBuf {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = scratch::directory();
        compile(folder.path());
        folder
    });
    folder.path().join("shim.so")
}

fn compile(folder: &Path) {
    must_be_installed(Path::new("cc"));
    // A server may run as somebody else.
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("a folder of ours");
    fs::write(folder.join("shim.c"), SHIM).expect("the source of the clock");
    let made = Command::new("cc")
        .current_dir(folder)
        .args(["-shared", "-fPIC", "-O2", "-o", "shim.so", "shim.c"])
        .output()
        .expect("cannot run cc");
    assert!(made.status.success(), "cc failed: {}", String::from_utf8_lossy(&made.stderr));
}
