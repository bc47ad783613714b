//! Where the file lies: a local, absolute place.

use std::path::{Path, PathBuf};

use crate::error::{Certainty, Error, ErrorKind, Result};

/// File systems on which SQLite's locks and shared memory do not work between machines, by the number
/// `statfs` gives them.
const NETWORK: &[(i64, &str)] = &[
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x5346_414f, "AFS"),
    (0x4750_4653, "GPFS"),
];

/// Makes the path absolute, makes the default directory, and refuses network file systems.
pub(super) fn settle(path: PathBuf) -> Result<PathBuf> {
    let is_default = crate::default_path().is_ok_and(|default| default == path);
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    if is_default {
        make_private(&directory)?;
    }
    let directory = directory.canonicalize().map_err(|error| {
        refused(format!("the directory {} of the store cannot be used", directory.display())).because(error)
    })?;
    let Some(file) = path.file_name() else {
        return Err(refused(format!("{} is not a file", path.display())));
    };
    let network = rustix::fs::statfs(&directory).ok().and_then(|stat| {
        #[allow(clippy::unnecessary_cast)] // its type differs between targets
        let kind = stat.f_type as i64;
        NETWORK.iter().find(|(number, _)| *number == kind)
    });
    if let Some((_, kind)) = network {
        return Err(refused(format!(
            "{} is on {kind}: the embedded store needs a local file system; use a networked store for several machines",
            directory.display()
        )));
    }
    let path = directory.join(file);
    match std::fs::metadata(&path) {
        Ok(found) if !found.is_file() => {
            return Err(refused(format!("{} is not a regular file: name another", path.display())));
        }
        Ok(_) => {}
        // Made here, since SQLite would make it for this user alone whatever the directory allows.
        Err(_) => make_file(&path)?,
    }
    // A link leads to the file other processes may name directly.
    Ok(path.canonicalize().unwrap_or(path))
}

/// Lets in whoever may write the directory the path lies in, unless that keeps everybody's files apart, as `/tmp`
/// does. Beyond that the umask has its say.
pub(super) fn share(made: &std::fs::File, path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    const STICKY: u32 = 0o1000;
    let directory = path.parent().map_or(Ok(0), |parent| std::fs::metadata(parent).map(|m| m.permissions().mode()))?;
    let found = made.metadata()?;
    let mut mode = found.permissions().mode() & 0o7777;
    for write in [0o020, 0o002] {
        if directory & STICKY == 0 && directory & write != 0 {
            // Reading as well; and entering, for a directory.
            mode |= write | write << 1 | if found.is_dir() { write >> 1 } else { 0 };
        }
    }
    made.set_permissions(std::fs::Permissions::from_mode(mode))
}

/// Makes an empty file, unless another process is quicker.
fn make_file(path: &Path) -> Result<()> {
    let made = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
    let settled = match made {
        Ok(file) => share(&file, path),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    };
    settled.map_err(|error| refused(format!("{} cannot be opened or made", path.display())).because(error))
}

fn make_private(directory: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| refused(format!("{} cannot be made", directory.display())).because(error))
}

fn refused(message: String) -> Error {
    Error::new(ErrorKind::Store, message).with_certainty(Certainty::NotApplied)
}
