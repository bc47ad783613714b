//! What others see of this process where they look for who holds a lock.

use std::ffi::OsStr;
use std::path::Path;

use tenure::machine::HolderView;

/// A run: where it is, and what it does. Only the command's name, for arguments may hold secrets.
pub(crate) fn of_run(command: &OsStr) -> String {
    let program = Path::new(command).file_name().unwrap_or(command);
    format!("{}:{} {}", host(), std::process::id(), program.to_string_lossy())
}

/// A claim left to a script: the script, since this process is about to end.
pub(crate) fn of_caller() -> String {
    match rustix::process::getppid() {
        Some(caller) => format!("{}:{}", host(), caller.as_raw_nonzero()),
        None => host(),
    }
}

/// The person who breaks a lock, or looks at one.
pub(crate) fn of_person() -> String {
    let user = ["SUDO_USER", "USER", "LOGNAME"]
        .into_iter()
        .find_map(|variable| std::env::var(variable).ok().filter(|user| !user.is_empty()));
    let by_id = || nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten().map(|user| user.name);
    user.or_else(by_id).map_or_else(of_caller, |user| format!("{user}@{}", host()))
}

/// A holder, as far as it left word: other libraries leave less than we do.
pub(crate) fn of_holder(holder: &HolderView) -> String {
    match (&holder.label, &holder.owner) {
        (Some(label), _) => label.clone(),
        (None, Some(owner)) => format!("the owner {owner}"),
        (None, None) => "a foreign client".to_owned(),
    }
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
