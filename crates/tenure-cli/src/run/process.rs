//! One process, as /proc shows it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, kill_process, pidfd_send_signal};

use super::guardian;

/// The longest line /proc has for a process is a third of this.
const STAT_MAX: usize = 1024;

/// A process at the time it was looked at.
#[derive(Debug)]
pub(crate) struct Process {
    /// Its number where /proc counts. That need not be where we count: a pid namespace may have no /proc of its own.
    pub(crate) id: u32,
    pub(crate) parent: u32,
    pub(crate) group: u32,
    /// Whether anything of it still runs: a main thread may have ended before the others.
    pub(crate) lives: bool,
    /// Whether it is a guardian as we are one.
    pub(crate) is_guardian: bool,
    /// When it started. With the number, this is what tells it from every other process.
    started: u64,
}

impl Process {
    /// All processes that we may see.
    pub(crate) fn all() -> io::Result<Vec<Self>> {
        let entries = std::fs::read_dir("/proc")?.flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        Ok(ids.filter_map(|id| Self::read(&Self::open(id).ok()?)).collect())
    }

    /// The number that /proc has for this very process.
    pub(crate) fn own_id() -> Option<u32> {
        std::fs::read_link("/proc/self").ok()?.to_str()?.parse().ok()
    }

    /// Sends it a signal, if it is still there. Never to another process that has its number by now.
    pub(crate) fn signal(&self, signal: Signal) {
        let Ok(directory) = Self::open(self.id) else { return };
        if Self::read(&directory).is_none_or(|now| now.started != self.started) {
            return;
        }
        match pidfd_send_signal(&directory, signal) {
            Ok(()) | Err(Errno::SRCH) => {}
            // A kernel without that call, or a sandbox that forbids it.
            Err(_) if Self::own_id().and_then(pid) == Some(getpid()) => {
                let _ = pid(self.id).map(|pid| kill_process(pid, signal));
            }
            Err(_) => {}
        }
    }

    /// Its directory, which stands for this process as long as it is open.
    fn open(id: u32) -> rustix::io::Result<OwnedFd> {
        open(format!("/proc/{id}"), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    }

    fn read(directory: &OwnedFd) -> Option<Self> {
        let mut buffer = [0; STAT_MAX];
        let stat = openat(directory, "stat", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let count = File::from(stat).read(&mut buffer).ok()?;
        Self::parse(&String::from_utf8_lossy(buffer.get(..count)?))
    }

    #[cfg(test)]
    pub(crate) fn for_tests(id: u32, parent: u32) -> Self {
        Self { id, parent, group: id, lives: true, is_guardian: false, started: 0 }
    }

    /// `stat` is: pid (command) state ppid pgrp ..., where the command may hold anything, parentheses too.
    fn parse(stat: &str) -> Option<Self> {
        let (id, rest) = stat.split_once(" (")?;
        let (command, rest) = rest.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let small = |index: usize| number(index).and_then(|number| u32::try_from(number).ok());
        let has_ended = matches!(*fields.first()?, "Z" | "X");
        Some(Self {
            id: id.parse().ok()?,
            parent: small(1)?,
            group: small(2)?,
            lives: !has_ended || number(17)? > 1,
            is_guardian: command == guardian::COMMAND,
            started: number(19)?,
        })
    }
}

fn pid(id: u32) -> Option<Pid> {
    i32::try_from(id).ok().and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_whatever_the_command_is_called() {
        let rest = "1 42 43 0 -1 4 5 6 7 8 9 10 11 12 20 0 1 0 777 1 2";
        let process = Process::parse(&format!("7 (a) Z 1 5) S {rest}")).unwrap();
        assert_eq!((process.id, process.parent, process.group, process.lives, process.started), (7, 1, 42, true, 777));
        assert!(!Process::parse(&format!("7 (sh) Z {rest}")).unwrap().lives);
        assert!(Process::parse(&format!("7 (lease-guardian) S {rest}")).unwrap().is_guardian);
        assert!(Process::parse("7 (sh) S 1 42").is_none());
        assert!(Process::parse("").is_none());
    }

    #[test]
    fn one_that_lives_on_in_other_threads_lives() {
        let process = Process::parse("7 (sh) Z 1 42 43 0 -1 4 5 6 7 8 9 10 11 12 20 0 3 0 777 1 2").unwrap();
        assert!(process.lives);
    }

    #[test]
    fn we_are_among_all() {
        let own = Process::own_id().unwrap();
        assert!(Process::all().unwrap().iter().any(|process| process.id == own && process.lives));
    }

    #[test]
    fn another_process_with_its_number_gets_no_signal() {
        let own = Process::own_id().unwrap();
        let mut process = Process::all().unwrap().into_iter().find(|process| process.id == own).unwrap();
        process.started += 1;
        process.signal(Signal::KILL);
    }
}
