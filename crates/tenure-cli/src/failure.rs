//! What goes wrong, as it is told: one line on stderr, perhaps a hint, and an exit code.

use std::fmt;
use std::io::Write;
use std::sync::OnceLock;

use serde::Serialize;
use tenure::{Certainty, ErrorKind, Name};

use crate::duration;
use crate::exit::Exit;
use crate::plain::plain;

/// Why a command did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    message: String,
    hint: Option<String>,
    about: Box<About>,
}

/// What programs are told of a failure besides its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct About {
    /// Of the library's error, if it was one.
    kind: Option<ErrorKind>,
    certainty: Option<Certainty>,
    name: Option<String>,
    holder: Option<Holder>,
    /// What it is, if that is no kind of the library's: `busy` (held by somebody, and not waited for), `skipped`.
    word: Option<&'static str>,
}

/// Who is in the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Holder {
    pub(crate) label: String,
    pub(crate) expires_in_ms: Option<u64>,
}

impl Holder {
    pub(crate) fn of(holder: &tenure::Holder) -> Self {
        Self { label: holder.label.clone(), expires_in_ms: Some(duration::ms(holder.expires_in)) }
    }
}

#[derive(Serialize)]
struct Told<'a> {
    error: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<&'a Holder>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certainty: Option<&'static str>,
    exit: u8,
}

#[derive(Serialize)]
struct Warning<'a> {
    warning: &'a str,
}

#[derive(Serialize)]
struct Note<'a> {
    note: &'a str,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), hint: None, about: Box::default() }
    }

    /// The kind of the library's error, if it was one.
    pub(crate) fn kind(&self) -> Option<ErrorKind> {
        self.about.kind
    }

    /// Names the lock.
    pub(crate) fn of(mut self, name: &Name) -> Self {
        self.about.name = Some(name.to_string());
        self
    }

    /// Says who is in the way.
    pub(crate) fn held_by(mut self, holder: Option<Holder>) -> Self {
        self.about.holder = holder;
        self
    }

    /// Says that it was not waited for. To the library, which gives no error then, that is no kind of its own.
    pub(crate) fn busy(mut self) -> Self {
        self.about.word = Some("busy");
        self
    }

    /// Says that the slot of a job was run, or is being run, by somebody else.
    pub(crate) fn skipped(mut self) -> Self {
        self.about.word = Some("skipped");
        self
    }

    /// A value that is not allowed, or a use that makes no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same with another exit code.
    pub(crate) fn exits(self, exit: Exit) -> Self {
        Self { exit, ..self }
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

    fn told(&self) -> Told<'_> {
        Told {
            error: &self.message,
            hint: self.hint.as_deref(),
            kind: match (self.about.word, self.about.kind) {
                (Some(word), _) => word,
                (None, kind) => kind.map_or_else(|| self.exit.name(), ErrorKind::as_str),
            },
            name: self.about.name.as_deref(),
            holder: self.about.holder.as_ref(),
            certainty: self.about.certainty.map(|certainty| match certainty {
                Certainty::NotApplied => "not_applied",
                Certainty::Unknown => "unknown",
            }),
            exit: self.exit.code(),
        }
    }

    /// Tells it on stderr; with `json`, as one line of JSON. That stderr may be gone is no reason to fail
    /// otherwise than with the exit code.
    pub(crate) fn tell(&self, json: bool) {
        if json {
            tell_json(&self.told());
        } else {
            say(&self.message);
            if let Some(hint) = &self.hint {
                write_lines(&format!("hint: {}\n", plain(hint)));
            }
        }
    }
}

/// How much is said besides errors: `--quiet`, `--verbose`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Talk {
    Quiet,
    #[default]
    Usual,
    Verbose,
}

static TALK: OnceLock<Talk> = OnceLock::new();

impl Talk {
    /// For all of this process.
    pub(crate) fn set(self) {
        let _ = TALK.set(self);
    }

    pub(crate) fn now() -> Self {
        TALK.get().copied().unwrap_or_default()
    }
}

/// Tells what is done, with `--verbose`.
pub(crate) fn tell(message: impl fmt::Display) {
    if Talk::now() == Talk::Verbose {
        say(message);
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
    if Talk::now() == Talk::Quiet {
        return;
    }
    if json {
        tell_json(&Warning { warning: message });
    } else {
        say(format_args!("warning: {message}"));
    }
}

/// Says what is neither a failure nor a reason to worry; with `json`, as one line of JSON.
pub(crate) fn note(message: &str, json: bool) {
    if Talk::now() == Talk::Quiet {
        return;
    }
    if json {
        tell_json(&Note { note: message });
    } else {
        say(message);
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
        let about = About {
            kind: Some(error.kind()),
            certainty: Some(error.certainty()),
            name: error.name().map(ToString::to_string),
            holder: error.holder().map(Holder::of),
            word: None,
        };
        Self { about: Box::new(about), ..Self::new(error.kind().into(), error.to_string()) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
