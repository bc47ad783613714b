//! The time the command runs: renewals passed to the guardian, signals to the command, the terminal to whom it is due.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_current_process_group, kill_process_group};
use tenure::Tenure;
use tenure::clock::{Clock, Moment, SystemClock, micros};
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::control::{Order, Report};
use super::hold::Given;
use super::holds::Holds;
use super::job::{self, End};
use super::link::Link;
use super::orphan;
use super::plan::Plan;
use super::terminal::Terminal;
use crate::duration;
use crate::exit::Exit;
use crate::failure::{Failure, say, tell};
use crate::signals::{AT_ONCE, Signals};
use crate::wait::FAREWELL;

/// Looks at the lease's deadline per ttl. It moves three times, and up to twelve where leases lag behind their
/// renewals: the guardian is to hear of it while there is time left.
const LOOKS_PER_TTL: u32 = 48;
const LOOK_MIN: Duration = Duration::from_millis(20);
/// A process group without a shell to continue it ignores SIGTSTP: after this long we go on.
const STOP_TAKES_AT_MOST: Duration = Duration::from_millis(300);

/// A command under way.
pub(crate) struct Supervision<'a> {
    plan: &'a Plan,
    tenure: &'a Tenure,
    holds: Holds,
    link: &'a mut Link,
    signals: &'a mut Signals,
    continued: unix::Signal,
    terminal: Terminal,
    /// The command, and its group.
    pid: Option<Pid>,
    /// When everything within the claim is to be ended, as the guardian was told last.
    deadline_us: u64,
    /// When it was acquired.
    since: Instant,
    /// Why the command is being ended, if it is.
    lost: Option<String>,
    /// Whether the command was not started.
    not_started: bool,
    /// When the command's time is over, once it has begun.
    timeout_at: Option<Instant>,
    /// Whether it was ended for that.
    timed_out: bool,
    /// When the group of a lost lease is ended even if the guardian does not do it.
    enforce_at: Option<Instant>,
    /// When we go on if we were not stopped after all.
    resume_at: Option<Instant>,
}

impl<'a> Supervision<'a> {
    pub(crate) fn new(
        plan: &'a Plan,
        tenure: &'a Tenure,
        holds: Holds,
        link: &'a mut Link,
        signals: &'a mut Signals,
    ) -> Result<Self, Failure> {
        let continued = signal(SignalKind::from_raw(Signal::CONT.as_raw()))
            .map_err(|error| Failure::new(Exit::Unavailable, format!("SIGCONT cannot be listened for: {error}")))?;
        let deadline_us = plan.killed_by(holds.deadline()).as_micros();
        let terminal = Terminal::on_stdin();
        Ok(Self {
            plan,
            tenure,
            holds,
            link,
            signals,
            continued,
            terminal,
            pid: None,
            deadline_us,
            since: Instant::now(),
            lost: None,
            not_started: false,
            timeout_at: None,
            timed_out: false,
            enforce_at: None,
            resume_at: None,
        })
    }

    /// Starts the command, sees it to its end, and releases the lock.
    pub(crate) async fn run(mut self) -> Result<Exit, Failure> {
        let env = match self.plan.environment(&self.holds) {
            Ok(env) => env,
            Err(failure) => {
                self.not_started = true;
                return self.finish(Err(failure)).await;
            }
        };
        let nature = (!self.plan.held.is_empty(), self.plan.purpose.ends_whole_group());
        if let Err(error) = self.link.start(env, self.deadline_us, micros(self.plan.grace), nature) {
            let failure = guardian_gone(&format!("before the command could start: {error}"));
            self.not_started = true;
            return self.finish(Err(failure)).await;
        }
        let outcome = self.supervise().await;
        self.finish(outcome).await
    }

    async fn supervise(&mut self) -> Result<Exit, Failure> {
        let mut look = interval((self.plan.ttl / LOOKS_PER_TTL).max(LOOK_MIN));
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let (enforce_at, resume_at, timeout_at) = (self.enforce_at, self.resume_at, self.timeout_at);
            tokio::select! {
                // Reports first: once the command's end is known, its pid may be anybody's, and is sent nothing.
                biased;
                report = self.link.next() => {
                    if let Some(outcome) = self.hear(report).await {
                        return outcome;
                    }
                }
                loss = self.holds.lost(), if self.lost.is_none() => self.lose(loss),
                () = at(enforce_at), if enforce_at.is_some() => return self.enforce().await,
                () = at(timeout_at), if timeout_at.is_some() => self.time_out(),
                _ = look.tick() => self.pass_deadline_on(),
                signal = self.signals.next(), if self.pid.is_some() => self.pass_signal_on(signal),
                _ = self.continued.recv() => self.resume(),
                () = at(resume_at), if resume_at.is_some() => self.resume(),
            }
        }
    }

    /// Takes a report of the guardian. An outcome, once the command has ended.
    async fn hear(&mut self, report: Option<Report>) -> Option<Result<Exit, Failure>> {
        match report {
            Some(Report::Pid(pid)) => {
                self.pid = Pid::from_raw(pid);
                self.timeout_at = self.plan.purpose.timeout().and_then(|limit| Instant::now().checked_add(limit));
                if let Some(group) = self.pid {
                    self.terminal.lend(group);
                }
            }
            Some(Report::Failed { message, code }) => {
                self.not_started = true;
                return Some(Err(self.not_started(&message, code)));
            }
            Some(Report::Overdue) => {
                if self.lost.is_none() {
                    let failure = self.holds.last_failure();
                    self.lost = Some(format!("it was not renewed in time{failure}; the command was stopped"));
                    // The guardian ends the group at the deadline it knew, unless it is stopped before.
                    self.enforce_within(Duration::MAX);
                }
            }
            Some(Report::Stopped(signal)) => self.command_stopped(signal),
            Some(Report::Exited(status)) => return Some(Ok(Exit::Command(status))),
            Some(Report::Signaled(signal)) => return Some(Ok(Exit::Signal(signal))),
            None => {
                say(format_args!("{}: its guardian process is gone; ending the command", self.plan.title()));
                let left = Moment(self.deadline_us).since(SystemClock.now());
                let grace = self.plan.grace.min(left);
                let ended = orphan::end(self.group(), grace).await;
                return Some(ended.ok_or_else(|| guardian_gone("before the command had started")));
            }
        }
        None
    }

    fn not_started(&self, message: &str, code: u8) -> Failure {
        let program = self.plan.command.first().map(|program| program.to_string_lossy()).unwrap_or_default();
        let (exit, problem) = match code {
            127 => (Exit::NotFound, "not found"),
            76 => return Failure::new(Exit::Lost, format!("{}: {message}", self.plan.title())),
            _ => (Exit::CannotExecute, "cannot be executed"),
        };
        Failure::new(exit, format!("{program}: {problem}: {message}"))
    }

    /// The command has taken too long. The lease is kept while it is ended.
    fn time_out(&mut self) {
        self.timeout_at = None;
        self.timed_out = true;
        self.link.tell(&Order::Term);
        let limit = self.plan.purpose.timeout().map(duration::exact).unwrap_or_default();
        say(format_args!("{}: ending the command, which has run for {limit}", self.plan.title()));
    }

    fn lose(&mut self, loss: String) {
        self.lost = Some(loss);
        // The guardian ends the group after its grace, but never later than the deadline. It may have been stopped.
        self.link.tell(&Order::Term);
        self.enforce_within(self.plan.grace);
    }

    /// Sees to it that the group ends within `limit`, and by the deadline.
    fn enforce_within(&mut self, limit: Duration) {
        let left = Moment(self.deadline_us).since(SystemClock.now());
        self.enforce_at = Some(Instant::now() + limit.min(left));
    }

    async fn enforce(&self) -> Result<Exit, Failure> {
        orphan::end(self.pid, Duration::ZERO).await.ok_or_else(|| guardian_gone("without a word"))
    }

    fn pass_deadline_on(&mut self) {
        // A lease that is lost has no deadline; the guardian keeps to the last it had.
        let deadline_us = self.plan.killed_by(self.holds.deadline()).as_micros();
        if deadline_us > self.deadline_us {
            self.deadline_us = deadline_us;
            self.link.tell(&Order::Deadline(deadline_us));
        }
    }

    /// The command's group, while it can be signalled: once the lease is lost the guardian ends everything, and may
    /// have reaped the command.
    fn group(&self) -> Option<Pid> {
        self.pid.filter(|_| self.lost.is_none())
    }

    fn pass_signal_on(&self, signal: i32) {
        if let (Some(group), Some(signal)) = (self.group(), Signal::from_named_raw(signal)) {
            let _ = kill_process_group(group, signal);
            if signal == Signal::TERM {
                self.link.tell(&Order::Told);
            }
        }
    }

    /// The command was stopped: by Ctrl-Z, or because it wanted the terminal.
    fn command_stopped(&mut self, signal: i32) {
        let Some(group) = self.group() else { return };
        let wants_terminal = [Signal::TTIN, Signal::TTOU].iter().any(|want| want.as_raw() == signal);
        if wants_terminal && self.terminal.lend_on_demand(group) {
            return;
        }
        let was_lent = self.terminal.take_back();
        if was_lent && !wants_terminal {
            say(format_args!(
                "{}: stopped; the lease is not renewed meanwhile and runs out in {}, which ends the command",
                self.plan.title(),
                duration::show(self.holds.remaining()),
            ));
            self.resume_at = Some(Instant::now() + STOP_TAKES_AT_MOST);
        }
        if was_lent || wants_terminal {
            // As the terminal would have done to all of the job; the shell sees it stop, and can continue it.
            let _ = kill_current_process_group(Signal::TSTP);
        }
    }

    /// We were continued (`fg`, `bg`), and so is the command.
    fn resume(&mut self) {
        self.resume_at = None;
        if let Some(group) = self.group()
            && !self.terminal.lend(group)
        {
            let _ = kill_process_group(group, Signal::CONT);
        }
    }

    /// Gives the terminal and the lock back, and decides how it all ended.
    async fn finish(mut self, outcome: Result<Exit, Failure>) -> Result<Exit, Failure> {
        self.terminal.take_back();
        if self.lost.is_some() || matches!(outcome, Ok(Exit::Signal(_))) {
            self.terminal.restore_modes();
        }
        let name = self.plan.title();
        // Whoever waits for the command waits for us: a lost lease leaves little to give back.
        let limit = if self.lost.is_some() { AT_ONCE } else { FAREWELL };
        let mut given = Given::Unknown("the store did not answer".to_owned());
        let ending = match &outcome {
            _ if self.not_started => End::NotStarted,
            _ if self.timed_out => End::TimedOut,
            outcome => End::By(outcome),
        };
        let mut unrecorded = None;
        let farewell = async {
            if let Some(attempt) = self.holds.attempt().filter(|_| self.lost.is_none()) {
                unrecorded = Some("the store did not answer".to_owned());
                unrecorded = job::end(self.plan, attempt, ending).await.err().map(|error| error.to_string());
            }
            given = self.holds.release().await;
            if self.plan.purpose.comes_again() { Ok(()) } else { self.tenure.close().await }
        };
        let _ = self.signals.allow(limit, farewell).await;
        if let Some(problem) = unrecorded {
            let message = format!("{name}: its end was not recorded, and counts as a failure: {problem}");
            Failure::new(Exit::Done, message).tell(self.plan.json);
        }
        let unreleased = match (self.lost.take(), given) {
            (Some(loss), _) | (None, Given::Lost(loss)) => {
                return Err(Failure::new(Exit::Lost, format!("{name}: the lease was lost: {loss}")));
            }
            (None, Given::Back) => {
                tell(format_args!("{name}: released after {}", duration::show(self.since.elapsed())));
                None
            }
            (None, Given::Unknown(why)) => Some(why),
        };
        if let Some(problem) = unreleased {
            let ttl = duration::show(self.plan.ttl);
            let message = format!("{name}: not released, it is free when its ttl of {ttl} is over: {problem}");
            // The command has ended, and its status is what the caller asked for.
            Failure::new(Exit::Done, message).tell(self.plan.json);
        }
        outcome
    }
}

async fn at(moment: Option<Instant>) {
    sleep_until(moment.unwrap_or_else(Instant::now)).await;
}

fn guardian_gone(when: &str) -> Failure {
    Failure::new(Exit::CannotExecute, format!("the guardian process of the command ended {when}"))
}
