//! Every exit code, once. They are a promise: scripts branch on them.

use std::process::ExitCode;

use tenure::ErrorKind;

/// How the command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// What was asked for was done.
    Done,
    /// `release`: the owner holds nothing. `break`: nobody holds. `doctor`: findings. `deadlocks`: there are any.
    /// `memo`: there is none.
    Nothing,
    /// Usage, a bad value, or a claim that cannot stand beside the live ones.
    Usage,
    /// The store was not reached, or cannot be used.
    Unavailable,
    /// Somebody else holds the lock.
    NotAcquired,
    /// The lease was lost or broken.
    Lost,
    /// The command exists but cannot be executed.
    CannotExecute,
    /// The command was not found.
    NotFound,
    /// Ended by this signal: the command, or `tenure` itself while it waited.
    Signal(i32),
    /// The command's own.
    Command(i32),
}

impl Exit {
    /// What programs are told of a failure that is none of the library's.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Nothing => "nothing",
            Self::Usage => "invalid",
            Self::Unavailable => "unavailable",
            Self::NotAcquired => "timeout",
            Self::Lost => "lost",
            Self::CannotExecute => "cannot_execute",
            Self::NotFound => "not_found",
            Self::Signal(_) => "interrupted",
            Self::Command(_) => "command",
        }
    }

    /// The number the caller sees.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Nothing => 1,
            Self::Usage => 64,
            Self::Unavailable => 69,
            Self::NotAcquired => 75,
            Self::Lost => 76,
            Self::CannotExecute => 126,
            Self::NotFound => 127,
            Self::Signal(signal) => 128_u8.saturating_add(u8::try_from(signal).unwrap_or(u8::MAX)),
            Self::Command(status) => u8::try_from(status & 0xff).unwrap_or(u8::MAX),
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

impl From<ErrorKind> for Exit {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Invalid | ErrorKind::Conflict | ErrorKind::NotHeld => Self::Usage,
            ErrorKind::Timeout | ErrorKind::Deadlock => Self::NotAcquired,
            ErrorKind::Lost => Self::Lost,
            // NotBuilt, Unavailable, Quorum, Store, Denied, Replicas, Closed, and kinds to come: no lock can be had
            // there.
            _ => Self::Unavailable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_as_documented() {
        for (exit, code) in [
            (Exit::Done, 0),
            (Exit::Nothing, 1),
            (Exit::Usage, 64),
            (Exit::Unavailable, 69),
            (Exit::NotAcquired, 75),
            (Exit::Lost, 76),
            (Exit::CannotExecute, 126),
            (Exit::NotFound, 127),
            (Exit::Signal(1), 129),
            (Exit::Signal(2), 130),
            (Exit::Signal(15), 143),
            (Exit::Command(0), 0),
            (Exit::Command(255), 255),
        ] {
            assert_eq!(exit.code(), code, "{exit:?}");
        }
    }

    #[test]
    fn every_kind_of_error_has_its_code() {
        for (kind, code) in [
            (ErrorKind::Invalid, 64),
            (ErrorKind::Conflict, 64),
            (ErrorKind::NotBuilt, 69),
            (ErrorKind::Unavailable, 69),
            (ErrorKind::Quorum, 69),
            (ErrorKind::Store, 69),
            (ErrorKind::Denied, 69),
            (ErrorKind::Replicas, 69),
            (ErrorKind::Timeout, 75),
            (ErrorKind::Deadlock, 75),
            (ErrorKind::Lost, 76),
        ] {
            assert_eq!(Exit::from(kind).code(), code, "{kind:?}");
        }
    }
}
