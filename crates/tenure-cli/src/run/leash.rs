//! When the command's group is told to stop, and when it is ended. Nothing here reads a clock or sends a signal.

/// How much rope the group has. All times in microseconds, moments on one clock.
#[derive(Debug)]
pub(crate) struct Leash {
    deadline: u64,
    grace: u64,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    Stopping { kill_at: u64 },
    Killed,
}

/// What to do to the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pull {
    /// Tell it to stop.
    Term,
    /// End it.
    Kill,
}

impl Leash {
    pub(crate) fn new(deadline: u64, grace: u64) -> Self {
        Self { deadline, grace, phase: Phase::Held }
    }

    /// The lease is good until then. Comes too late for a group that was told to stop.
    pub(crate) fn renew(&mut self, deadline: u64) {
        self.deadline = self.deadline.max(deadline);
    }

    /// The group has to stop now, whatever the deadline. True unless it was told before.
    pub(crate) fn stop(&mut self, now: u64) -> bool {
        if self.phase != Phase::Held {
            return false;
        }
        self.phase = Phase::Stopping { kill_at: now.saturating_add(self.grace).min(self.deadline) };
        true
    }

    /// The group has to end now.
    pub(crate) fn kill(&mut self, now: u64) {
        if self.phase != Phase::Killed {
            self.phase = Phase::Stopping { kill_at: now };
        }
    }

    /// What is due. To be asked until nothing is.
    pub(crate) fn due(&mut self, now: u64) -> Option<Pull> {
        match self.phase {
            Phase::Held if now >= self.deadline.saturating_sub(self.grace) => {
                self.phase = Phase::Stopping { kill_at: self.deadline };
                Some(Pull::Term)
            }
            Phase::Stopping { kill_at } if now >= kill_at => {
                self.phase = Phase::Killed;
                Some(Pull::Kill)
            }
            _ => None,
        }
    }

    /// When something is due next.
    pub(crate) fn next(&self) -> Option<u64> {
        match self.phase {
            Phase::Held => Some(self.deadline.saturating_sub(self.grace)),
            Phase::Stopping { kill_at } => Some(kill_at),
            Phase::Killed => None,
        }
    }

    /// Whether the group was told to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.phase != Phase::Held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_renewals_the_group_stops_before_the_deadline_and_dies_at_it() {
        let mut leash = Leash::new(1_000, 200);
        assert_eq!((leash.next(), leash.due(799)), (Some(800), None));
        assert_eq!((leash.due(800), leash.due(800)), (Some(Pull::Term), None));
        assert_eq!((leash.next(), leash.due(999)), (Some(1_000), None));
        assert_eq!((leash.due(1_000), leash.due(1_000), leash.next()), (Some(Pull::Kill), None, None));
    }

    #[test]
    fn a_renewal_lengthens_and_never_shortens() {
        let mut leash = Leash::new(1_000, 200);
        leash.renew(2_000);
        leash.renew(1_500);
        assert_eq!((leash.due(1_000), leash.next()), (None, Some(1_800)));
    }

    #[test]
    fn a_renewal_after_the_word_to_stop_does_not_take_it_back() {
        let mut leash = Leash::new(1_000, 200);
        assert_eq!(leash.due(800), Some(Pull::Term));
        leash.renew(5_000);
        assert_eq!(leash.due(1_000), Some(Pull::Kill));
    }

    #[test]
    fn told_to_stop_it_has_its_grace_but_never_beyond_the_deadline() {
        let mut leash = Leash::new(1_000, 200);
        assert!(leash.stop(100) && !leash.stop(150));
        assert_eq!((leash.next(), leash.due(300)), (Some(300), Some(Pull::Kill)));
        let mut leash = Leash::new(1_000, 200);
        assert!(leash.stop(950));
        assert_eq!(leash.next(), Some(1_000));
    }

    #[test]
    fn told_to_end_it_ends_at_once_and_once() {
        let mut leash = Leash::new(1_000, 200);
        leash.kill(100);
        assert_eq!((leash.due(100), leash.due(100)), (Some(Pull::Kill), None));
        leash.kill(150);
        assert_eq!(leash.due(150), None);
    }

    #[test]
    fn after_a_suspend_past_the_deadline_both_are_due() {
        let mut leash = Leash::new(1_000, 200);
        assert_eq!([leash.due(9_000), leash.due(9_000), leash.due(9_000)], [Some(Pull::Term), Some(Pull::Kill), None]);
    }
}
