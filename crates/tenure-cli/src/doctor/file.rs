//! The embedded store: its file, its log, and the disk they are on.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tenure::{Checkup, Fix};

/// A log that was not folded back into the file for long.
const LOG_MAX: u64 = 64 << 20;
/// What the disk must have left.
const ROOM_MIN: u64 = 16 << 20;
/// File systems by the number `statfs` gives them.
const KINDS: [(i64, &str); 6] = [
    (0x0102_1994, "tmpfs"),
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x794c_7630, "overlayfs"),
    (0x2fc1_2fc1, "zfs"),
];

/// Looks at the file of an `sqlite:` URL; at nothing for another store.
pub(super) fn examine(url: &str, checkup: &mut Checkup) {
    if url.starts_with("memory:") {
        checkup.fact("reach", "tasks of one process: no other process sees these locks");
    }
    let Some(path) = url.strip_prefix("sqlite:").map(PathBuf::from) else { return };
    let Ok(found) = path.metadata() else { return };
    checkup.fact("reach", "processes of this machine, under this kernel");
    checkup.fact("file", format!("{} KiB", found.len() >> 10));
    let mut log = path.clone().into_os_string();
    log.push("-wal");
    let log = Path::new(&log).metadata().map_or(0, |log| log.len());
    checkup.fact("write-ahead log", format!("{} KiB", log >> 10));
    if log > LOG_MAX {
        checkup.advice(
            format!("the write-ahead log has {} MiB", log >> 20),
            "every operation reads through it, and somebody keeps it from being folded back",
            Fix::from("end whoever has the file open for long").run(format!("fuser -v {}", quoted(path.as_path()))),
        );
    }
    let mode = found.permissions().mode() & 0o777;
    checkup.fact("permissions", format!("{mode:03o}"));
    if mode & 0o002 != 0 {
        checkup.advice(
            "everybody on this machine may write the file",
            "whoever writes it can end any lock",
            Fix::from("take that right away").run(format!("chmod o-w {}", quoted(&path))),
        );
    }
    journal(&path, checkup);
    disk(&path, checkup);
}

/// Bytes 18 and 19 of the file say how it is written: 2 is the write-ahead log.
fn journal(path: &Path, checkup: &mut Checkup) {
    let mut header = [0; 20];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut header));
    match (read, &header[18..]) {
        (Ok(()), [2, 2]) => checkup.fact("journal", "write-ahead log"),
        (Ok(()), _) => checkup.problem(
            "the file is not in write-ahead mode",
            "readers and writers stop each other, and locks become slow",
            Fix::from("put it into that mode").run(format!("sqlite3 {} 'PRAGMA journal_mode = WAL'", quoted(path))),
        ),
        (Err(_), _) => {}
    }
}

fn disk(path: &Path, checkup: &mut Checkup) {
    let Ok(disk) = rustix::fs::statfs(path) else { return };
    #[allow(clippy::unnecessary_cast)] // their types differ between targets
    let (kind, room) = (disk.f_type as i64, (disk.f_bavail as u64).saturating_mul(disk.f_bsize as u64));
    let name = KINDS
        .iter()
        .find(|(number, _)| *number == kind)
        .map_or_else(|| format!("{kind:#x}"), |(_, name)| (*name).to_owned());
    checkup.fact("file system", format!("{name}, {} MiB free", room >> 20));
    if room < ROOM_MIN {
        checkup.problem(
            format!("the disk of the file has {} KiB left", room >> 10),
            "when it is full, no lock can be taken or kept",
            Fix::from("make room").run(format!("df -h {}", quoted(path))),
        );
    }
}

/// A path as a shell reads it.
fn quoted(path: &Path) -> String {
    crate::args::quoted(&path.to_string_lossy())
}
