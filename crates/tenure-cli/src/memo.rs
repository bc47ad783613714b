//! `memo`: what is kept with a name.

use std::io::IsTerminal as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use tenure::{Memo, Name, Tenure};

use crate::args::ReadMemo;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::label;
use crate::output;
use crate::store::Store;

/// A memo, for programs.
#[derive(Serialize)]
struct Told<'a> {
    name: &'a str,
    token: u64,
    version: u64,
    age_ms: u64,
    kind: &'static str,
    /// The bytes in base64.
    value: String,
}

impl<'a> Told<'a> {
    fn new(name: &'a Name, memo: &Memo) -> Self {
        Self {
            name: name.as_str(),
            token: memo.token.get(),
            version: memo.version,
            age_ms: u64::try_from(memo.age.as_millis()).unwrap_or(u64::MAX),
            kind: memo.kind.as_str(),
            value: BASE64_STANDARD.encode(&memo.bytes),
        }
    }
}

/// The bytes as text that cannot steer a terminal, on lines of their own.
fn harmless(bytes: &[u8]) -> String {
    let shown = |c: char| if c.is_control() && c != '\n' && c != '\t' { char::REPLACEMENT_CHARACTER } else { c };
    let mut lines: String = String::from_utf8_lossy(bytes).chars().map(shown).collect();
    if !lines.is_empty() && !lines.ends_with('\n') {
        lines.push('\n');
    }
    lines
}

pub(crate) async fn read(args: ReadMemo, store: Store, json: bool) -> Result<Exit, Failure> {
    let name = Name::new(&args.name)?;
    let read = async |tenure: &Tenure| store.ask(tenure.memo(name.as_str())).await;
    let memo = store.with(&label::of_person(), json, read).await?;
    match (&memo, json) {
        (memo, true) => output::print_json(&memo.as_ref().map(|memo| Told::new(&name, memo)))?,
        (Some(memo), false) if std::io::stdout().is_terminal() => output::print(harmless(&memo.bytes).as_bytes())?,
        (Some(memo), false) => output::print(&memo.bytes)?,
        (None, false) => return Err(Failure::new(Exit::Nothing, format!("{name}: no memo is kept with this name"))),
    }
    Ok(if memo.is_some() { Exit::Done } else { Exit::Nothing })
}
