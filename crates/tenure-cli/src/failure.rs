//! What goes wrong, as it is told: one line on stderr, perhaps a hint, and an exit code.

use std::fmt;
use std::io::Write;

use serde::Serialize;

use crate::exit::Exit;

/// Why a command did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    message: String,
    hint: Option<String>,
}

#[derive(Serialize)]
struct Told<'a> {
    error: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
    exit: u8,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), hint: None }
    }

    /// A value that is not allowed, or a use that makes no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Tells it on stderr; with `json`, as one line of JSON. That stderr may be gone is no reason to fail
    /// otherwise than with the exit code.
    pub(crate) fn tell(&self, json: bool) {
        if json {
            let told = Told { error: &self.message, hint: self.hint.as_deref(), exit: self.exit.code() };
            let line = serde_json::to_string(&told).unwrap_or_default();
            let _ = writeln!(std::io::stderr(), "{line}");
        } else {
            say(&self.message);
            if let Some(hint) = &self.hint {
                let _ = writeln!(std::io::stderr(), "hint: {hint}");
            }
        }
    }
}

/// Talks to the user, in one write so that lines of several processes do not mix.
pub(crate) fn say(message: impl fmt::Display) {
    let _ = std::io::stderr().write_all(format!("tenure: {message}\n").as_bytes());
}

impl From<tenure::Error> for Failure {
    fn from(error: tenure::Error) -> Self {
        Self::new(error.kind().into(), error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
