//! The guardian: a process that outlives whatever befalls `tenure run`, for as long as the command does.
//!
//! It starts the command in a process group of its own, keeps the lease's deadline, and sees to it that the group does
//! not outlive it. It hears of renewals over its stdin; when that closes, `tenure run` is gone and the group is ended
//! at once. One thread, no runtime: three descriptors to wait for.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tenure::clock::{Clock, SystemClock};

use super::control::{Lines, Order, Report, line, receive, send};
use super::group::is_empty;
use super::launch::{Start, await_start, start};
use super::leash::{Leash, Pull};
use crate::exit::Exit;
use crate::signals::Handlers;

/// How often the rest of a group is looked for whose leader has ended.
const LOOK_AGAIN_US: u64 = 20_000;

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
    // `killall tenure` would otherwise end the group's last keeper together with the first.
    drop(std::fs::write("/proc/self/comm", "lease-guardian"));
    let _handlers = Handlers::install()?;
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let mut lines = Lines::default();
    let Some(Start { env, mut leash, stdin }) = await_start(&socket, &mut lines)? else { return Ok(()) };
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
    let guardian = Guardian { socket, lines, signals, timer, leash, pid, alone: false, told: false, ended: None };
    // From here on nothing may fail and leave the command to itself.
    let watched = blocked.map_err(io::Error::from).and_then(|()| guardian.watch());
    if watched.is_err() {
        let _ = kill_process_group(pid, Signal::KILL);
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
    /// Whether `tenure run` is gone.
    alone: bool,
    /// Whether somebody has asked the command to end.
    told: bool,
    /// How the command ended. It stays unreaped, so that its pid still means its group.
    ended: Option<Report>,
}

impl Guardian {
    fn watch(mut self) -> io::Result<()> {
        loop {
            self.look_at_command()?;
            while let Some(pull) = self.leash.due(now()) {
                self.pull(pull);
            }
            if self.ended.is_some() && self.is_over() {
                return self.ended.take().map_or(Ok(()), |report| tell(&self.socket, &report));
            }
            self.set_timer()?;
            self.sleep()?;
        }
    }

    /// Whether nothing is left to do after the command has ended: a group that was told to stop is watched to its last
    /// member; what a command leaves running when it ends by itself is its own affair, as with flock.
    fn is_over(&self) -> bool {
        !self.leash.is_stopping() || self.leash.is_killed() || is_empty(self.pid)
    }

    fn pull(&self, pull: Pull) {
        match pull {
            Pull::Term => {
                drop(tell(&self.socket, &Report::Overdue));
                self.ask_to_stop();
            }
            Pull::Kill => {
                let _ = kill_process_group(self.pid, Signal::KILL);
            }
        }
    }

    /// A stopped process does not hear of SIGTERM until it is continued.
    fn ask_to_stop(&self) {
        let _ = kill_process_group(self.pid, Signal::TERM);
        let _ = kill_process_group(self.pid, Signal::CONT);
    }

    fn stop_now(&mut self) {
        if self.leash.stop(now()) {
            self.ask_to_stop();
        }
    }

    fn look_at_command(&mut self) -> io::Result<()> {
        if self.ended.is_some() {
            return Ok(());
        }
        let ends = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if let Some(status) = waitid(WaitId::Pid(self.pid), ends)? {
            self.ended = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Some(Report::Exited(code)),
                (None, Some(signal)) => Some(Report::Signaled(signal)),
                (None, None) => None,
            };
            return Ok(());
        }
        let stops = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        match waitid(WaitId::Pid(self.pid), stops) {
            Ok(status) => {
                if let Some(signal) = status.and_then(|status| status.stopping_signal()) {
                    drop(tell(&self.socket, &Report::Stopped(signal)));
                }
            }
            // It has ended since, and SIGCHLD says so.
            Err(rustix::io::Errno::CHILD) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn hear(&mut self) -> io::Result<()> {
        let mut buffer = [0; 1024];
        // A reset (it was killed with something of ours unread) is an end as well.
        let count = receive(&self.socket, &mut buffer).map_or(0, |(count, _)| count);
        if count == 0 {
            self.alone = true;
            // SIGKILL after SIGTERM means at once. So do the last moments of an enclosing run, whose group `tenure run`
            // was in: the command, in a group of its own, must not outlive that run's lease for the sake of its grace.
            if self.told {
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
        let look_again = self.ended.is_some().then(|| now() + LOOK_AGAIN_US);
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

fn tell(socket: &OwnedFd, report: &Report) -> io::Result<()> {
    send(socket, &line(report)?, None)
}

fn now() -> u64 {
    SystemClock.now().as_micros()
}
