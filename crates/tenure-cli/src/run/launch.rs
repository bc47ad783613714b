//! How the guardian starts the command.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::Pid;

use super::control::{Lines, Order, receive};
use super::leash::Leash;

/// ENOEXEC: a script without a `#!` line.
const NO_INTERPRETER: i32 = 8;

/// All that is needed to start the command.
pub(crate) struct Start {
    pub(crate) env: BTreeMap<String, Option<String>>,
    pub(crate) leash: Leash,
    /// Whether another run encloses this one.
    pub(crate) nested: bool,
    /// Whether what the command leaves running is ended too.
    pub(crate) whole: bool,
    pub(crate) stdin: OwnedFd,
}

/// Waits for the word to start. `None` if there is nothing to do: the lock was not acquired.
pub(crate) fn await_start(socket: &OwnedFd, lines: &mut Lines) -> io::Result<Option<Start>> {
    let mut buffer = [0; 4096];
    let mut stdin = None;
    loop {
        let (count, passenger) = receive(socket, &mut buffer)?;
        if count == 0 {
            return Ok(None);
        }
        stdin = stdin.or(passenger);
        lines.push(buffer.get(..count).unwrap_or_default());
        match lines.next::<Order>().transpose()? {
            Some(Order::Start { env, deadline_us, grace_us, nested, whole }) => {
                let stdin = stdin.ok_or_else(|| io::Error::other("no stdin came with the order to start"))?;
                return Ok(Some(Start { env, leash: Leash::new(deadline_us, grace_us), nested, whole, stdin }));
            }
            Some(_) => return Err(io::Error::other("not an order to start")),
            None => {}
        }
    }
}

/// Starts the command as the leader of a new process group.
pub(crate) fn start(command: &[OsString], env: &BTreeMap<String, Option<String>>, stdin: OwnedFd) -> io::Result<Pid> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::NotFound)?;
    let spawn = |program: &OsString, arguments: &[&OsString], stdin: Stdio| {
        let mut child = Command::new(program);
        child.args(arguments).stdin(stdin).process_group(0);
        for (name, value) in env {
            match value {
                Some(value) => child.env(name, value),
                None => child.env_remove(name),
            };
        }
        child.spawn()
    };
    let plain: Vec<&OsString> = arguments.iter().collect();
    let child = match spawn(program, &plain, Stdio::from(stdin.try_clone()?)) {
        // As shells and execvp do.
        Err(error) if error.raw_os_error() == Some(NO_INTERPRETER) => {
            let script: Vec<&OsString> = std::iter::once(program).chain(arguments).collect();
            spawn(&OsString::from("/bin/sh"), &script, Stdio::from(stdin)).map_err(|_| error)
        }
        outcome => outcome,
    }?;
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(|| io::Error::other("no pid"))
}
