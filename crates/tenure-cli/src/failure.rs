//! What goes wrong, as it is told: one line on stderr, perhaps a hint, and an exit code.

use std::fmt;
use std::io::Write;

use serde::Serialize;

use crate::exit::Exit;
use crate::plain::plain;

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

#[derive(Serialize)]
struct Warning<'a> {
    warning: &'a str,
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

    /// Says more.
    pub(crate) fn and(mut self, more: &str) -> Self {
        self.message = format!("{}; {more}", self.message);
        self
    }

    /// Says where the value at fault came from.
    pub(crate) fn of_source(mut self, source: &str) -> Self {
        self.message = format!("{source}: {}", self.message);
        self
    }

    /// Tells it on stderr; with `json`, as one line of JSON. That stderr may be gone is no reason to fail
    /// otherwise than with the exit code.
    pub(crate) fn tell(&self, json: bool) {
        if json {
            let told = Told { error: &self.message, hint: self.hint.as_deref(), exit: self.exit.code() };
            tell_json(&told);
        } else {
            say(&self.message);
            if let Some(hint) = &self.hint {
                write_lines(&format!("hint: {}\n", plain(hint)));
            }
        }
    }
}

/// Talks to the user, in one write so that lines of several processes do not mix.
pub(crate) fn say(message: impl fmt::Display) {
    write_lines(&format!("tenure: {}\n", plain(&message.to_string())));
}

/// The same for a text of several lines.
pub(crate) fn say_lines(text: &str) {
    let lines: Vec<String> = text.lines().map(plain).collect();
    write_lines(&format!("tenure: {}\n", lines.join("\n")));
}

/// Warns of what is no failure; with `json`, as one line of JSON.
pub(crate) fn warn(message: &str, json: bool) {
    if json {
        tell_json(&Warning { warning: message });
    } else {
        say(format_args!("warning: {message}"));
    }
}

/// Writes lines of our own making to stderr. That it may be gone changes nothing.
pub(crate) fn write_lines(lines: &str) {
    let _ = std::io::stderr().write_all(lines.as_bytes());
}

fn tell_json(told: &impl Serialize) {
    let line = serde_json::to_string(told).unwrap_or_default();
    write_lines(&format!("{line}\n"));
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
