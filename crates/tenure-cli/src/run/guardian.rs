//! The guardian: a process that outlives whatever befalls `tenure run`, for as long as the command does.
//!
//! It starts the command in a process group of its own, keeps the lease's deadline, and sees to it that nothing the
//! command started outlives it. It hears of renewals over its stdin; when that closes, `tenure run` is gone and the
//! command is ended at once. One thread, no runtime: three descriptors to wait for.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Pid;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tenure::clock::{Clock, SystemClock};

use super::control::{Lines, Order, Report, line, receive, send};
use super::launch::{Start, await_start, start};
use super::leash::{Leash, Pull};
use super::tree;
use crate::exit::Exit;
use crate::signals::Handlers;

/// What the guardian is called where processes are listed. `killall tenure` would otherwise end the command's last
/// keeper together with the first.
pub(crate) const COMMAND: &str = "lease-guardian";

/// How often those are looked for that have not ended after SIGKILL: they may have been forked meanwhile.
const LOOK_AGAIN_US: u64 = 20_000;
/// How long that goes on. What is not ours to kill (`sudo`), or hangs in the kernel, is left then.
const KILL_MAX_US: u64 = 1_000_000;

/// Is a guardian until the command has ended. `arguments` begins with `--`.
pub(crate) fn main(arguments: Vec<OsString>) -> Exit {
    let command: Vec<OsString> = arguments.into_iter().skip(1).collect();
    // Nobody notices if this fails: `tenure run` sees the socket close, and ends the command itself.
    drop(guard(&command));
    Exit::Done
}

fn guard(command: &[OsString]) -> io::Result<()> {
    // Whoever asks the foreground or `tenure` to end does not mean us: we end last.
    let everything = SigSet::all();
    let mask = everything.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_SETMASK)?;
    let signals = SignalFd::with_flags(&everything, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    drop(std::fs::write("/proc/self/comm", COMMAND));
    tree::adopt_orphans();
    let _handlers = Handlers::install()?;
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let mut lines = Lines::default();
    let Some(Start { env, mut leash, nested, whole, stdin }) = await_start(&socket, &mut lines)? else { return Ok(()) };
    if leash.due(now()).is_some() {
        let message = "the lease ran out before the command could start".to_owned();
        return tell(&socket, &Report::Failed { message, code: Exit::Lost.code() });
    }
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    // The command starts with the signal mask that `tenure run` was started with, so the block is lifted for a moment.
    // Signals that come then meet handlers, which the command does not inherit.
    while let Ok(Some(_)) = signals.read_signal() {}
    mask.thread_set_mask()?;
    let started = start(command, &env, stdin);
    let blocked = everything.thread_set_mask();
    let pid = match started {
        Ok(pid) => pid,
        Err(error) => {
            let exit = if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::CannotExecute };
            return tell(&socket, &Report::Failed { message: error.to_string(), code: exit.code() });
        }
    };
    drop(tell(&socket, &Report::Pid(pid.as_raw_nonzero().get())));
    let mut guardian = Guardian {
        socket,
        lines,
        signals,
        timer,
        leash,
        pid,
        nested,
        whole,
        alone: false,
        told: false,
        ended: None,
        any_left: true,
        kill_until: None,
    };
    // From here on nothing may fail and leave the command to itself.
    let watched = blocked.map_err(io::Error::from).and_then(|()| guardian.watch());
    if watched.is_err() {
        tree::kill(guardian.group());
    }
    watched
}

struct Guardian {
    socket: OwnedFd,
    lines: Lines,
    signals: SignalFd,
    timer: OwnedFd,
    leash: Leash,
    /// The command, and the group it leads.
    pid: Pid,
    /// Whether another run encloses this one.
    nested: bool,
    /// Whether what the command leaves running is ended too.
    whole: bool,
    /// Whether `tenure run` is gone.
    alone: bool,
    /// Whether somebody has asked the command to end.
    told: bool,
    /// How the command ended.
    ended: Option<Report>,
    /// Whether anything is left of what the command started, or the command itself.
    any_left: bool,
    /// Until when everything is killed, once that has begun.
    kill_until: Option<u64>,
}

impl Guardian {
    fn watch(&mut self) -> io::Result<()> {
        loop {
            self.look_at_children();
            if self.whole && self.ended.is_some() && self.any_left {
                self.stop_now();
            }
            while let Some(pull) = self.leash.due(now()) {
                self.pull(pull);
            }
            if self.is_killing() {
                tree::kill(self.group());
            }
            if let Some(report) = self.ended.take_if(|_| is_over(&self.leash, self.any_left, self.kill_until)) {
                // If nobody hears it, nobody asks.
                drop(tell(&self.socket, &report));
                return Ok(());
            }
            self.set_timer()?;
            self.sleep()?;
        }
    }

    fn pull(&mut self, pull: Pull) {
        match pull {
            Pull::Term => {
                drop(tell(&self.socket, &Report::Overdue));
                tree::ask_to_stop(self.group());
            }
            Pull::Kill => self.kill_until = Some(now().saturating_add(KILL_MAX_US)),
        }
    }

    fn stop_now(&mut self) {
        if self.leash.stop(now()) {
            tree::ask_to_stop(self.group());
        }
    }

    fn is_killing(&self) -> bool {
        self.any_left && self.kill_until.is_some_and(|until| now() < until)
    }

    /// The command's group. Once the command is reaped its number may be another's.
    fn group(&self) -> Option<Pid> {
        self.ended.is_none().then_some(self.pid)
    }

    fn look_at_children(&mut self) {
        let (pid, socket, ended) = (self.pid, &self.socket, &mut self.ended);
        self.any_left = tree::reap(|child, status| {
            if child != pid {
                return;
            }
            match (status.exit_status(), status.terminating_signal(), status.stopping_signal()) {
                (Some(code), _, _) => *ended = Some(Report::Exited(code)),
                (_, Some(signal), _) => *ended = Some(Report::Signaled(signal)),
                (_, _, Some(signal)) => drop(tell(socket, &Report::Stopped(signal))),
                (None, None, None) => {}
            }
        });
    }

    fn hear(&mut self) -> io::Result<()> {
        let mut buffer = [0; 1024];
        // A reset (it was killed with something of ours unread) is an end as well.
        let count = receive(&self.socket, &mut buffer).map_or(0, |(count, _)| count);
        if count == 0 {
            self.alone = true;
            // SIGKILL after SIGTERM means at once. And within another run this may be that run's kill at its deadline,
            // which the command must not outlive for the sake of its own grace.
            if self.told || self.nested {
                self.leash.kill(now());
            } else {
                self.stop_now();
            }
        }
        self.lines.push(buffer.get(..count).unwrap_or_default());
        while let Some(order) = self.lines.next::<Order>() {
            match order? {
                Order::Deadline(deadline_us) => self.leash.renew(deadline_us),
                Order::Term => self.stop_now(),
                Order::Told => self.told = true,
                Order::Start { .. } => {}
            }
        }
        Ok(())
    }

    fn set_timer(&self) -> io::Result<()> {
        let look_again = self.is_killing().then(|| now() + LOOK_AGAIN_US);
        // Zero disarms it.
        let at = self.leash.next().into_iter().chain(look_again).min().map_or(0, |at| at.max(1));
        let value = Timespec {
            tv_sec: i64::try_from(at / 1_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(at % 1_000_000 * 1_000).unwrap_or(0),
        };
        let setting = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &setting)?;
        Ok(())
    }

    /// Sleeps until there is something to hear, to see or to do.
    fn sleep(&mut self) -> io::Result<()> {
        let mut waiting = vec![
            PollFd::new(&self.timer, PollFlags::IN),
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
        ];
        if !self.alone {
            waiting.push(PollFd::new(&self.socket, PollFlags::IN));
        }
        match poll(&mut waiting, None) {
            Err(rustix::io::Errno::INTR) => return Ok(()),
            other => other?,
        };
        let heard = waiting.get(2).is_some_and(|socket| !socket.revents().is_empty());
        while let Ok(Some(_)) = self.signals.read_signal() {}
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        if heard { self.hear() } else { Ok(()) }
    }
}

/// Whether nothing is left to do after the command has ended: what was told to stop is watched to its last process;
/// what a command leaves running when it ends by itself is its own affair, as with flock (a leader's is stopped then).
fn is_over(leash: &Leash, any_left: bool, kill_until: Option<u64>) -> bool {
    !leash.is_stopping() || !any_left || kill_until.is_some_and(|until| now() >= until)
}

fn tell(socket: &OwnedFd, report: &Report) -> io::Result<()> {
    send(socket, &line(report)?, None)
}

fn now() -> u64 {
    SystemClock.now().as_micros()
}
