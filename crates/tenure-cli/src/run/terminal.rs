//! The terminal, lent to the command's process group.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

use crate::exit::Exit;
use crate::failure::Failure;

/// While the command has the terminal we are in its background, where writing to it or taking it back would stop
/// us: not with SIGTTOU blocked. To be called once, after the guardian was started, which would inherit it.
pub(crate) fn outlive_background() -> Result<(), Failure> {
    let mut stops = SigSet::empty();
    stops.add(NixSignal::SIGTTOU);
    stops.thread_block().map_err(|error| Failure::new(Exit::Unavailable, format!("signals cannot be blocked: {error}")))
}

/// The terminal we were started from, if any.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: Option<OwnedFd>,
    /// None if its leader is in another pid namespace, so that it has no number here.
    own_group: Option<Pid>,
    lent: bool,
    /// How it was set before it was lent.
    modes: Option<Termios>,
}

impl Terminal {
    /// The terminal on stdin, if there is one and it is ours to lend.
    pub(crate) fn on_stdin() -> Self {
        let stdin = io::stdin();
        let tty = isatty(&stdin).then(|| stdin.as_fd().try_clone_to_owned().ok()).flatten();
        let ours = tty.filter(|tty| tcgetpgrp(tty).is_ok());
        let own_group = Pid::from_raw(nix::unistd::getpgrp().as_raw());
        Self { tty: ours, own_group, lent: false, modes: None }
    }

    /// Lends it to a group, and wakes the group in case it asked too early and was stopped for it. False if it is
    /// not ours to lend, since we are in the background ourselves.
    pub(crate) fn lend(&mut self, group: Pid) -> bool {
        let Some(tty) = &self.tty else { return false };
        if self.modes.is_none() {
            self.modes = tcgetattr(tty).ok();
        }
        match tcgetpgrp(tty) {
            Ok(foreground) if foreground == group => self.lent = true,
            Ok(foreground) if Some(foreground) == self.own_group => self.lent = tcsetpgrp(tty, group).is_ok(),
            _ => self.lent = false,
        }
        if self.lent {
            let _ = kill_process_group(group, Signal::CONT);
        }
        self.lent
    }

    /// Lends it to a group that was stopped for want of it, even if our stdin is something else
    /// (`list | tenure run x -- less` reads its keys from the terminal).
    pub(crate) fn lend_on_demand(&mut self, group: Pid) -> bool {
        if self.tty.is_none() {
            self.tty = rustix::fs::open("/dev/tty", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok();
        }
        self.lend(group)
    }

    /// Takes it back, if it was lent. True if it was.
    pub(crate) fn take_back(&mut self) -> bool {
        let lent = std::mem::replace(&mut self.lent, false);
        if let (Some(tty), Some(own_group)) = (&self.tty, self.own_group)
            && lent
        {
            let _ = tcsetpgrp(tty, own_group);
        }
        lent
    }

    /// Sets it as it was: a command that was ended had no time to.
    pub(crate) fn restore_modes(&self) {
        if let (Some(tty), Some(modes)) = (&self.tty, &self.modes)
            && tcgetpgrp(tty).is_ok_and(|foreground| Some(foreground) == self.own_group)
        {
            let _ = tcsetattr(tty, OptionalActions::Drain, modes);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back();
    }
}
