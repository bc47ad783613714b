//! stdout: data, and only data.

use std::io::{ErrorKind, Write};

use serde::Serialize;

use crate::exit::Exit;
use crate::failure::Failure;

/// Writes to stdout. A reader that has gone away (`| head`) has what it wanted: no failure.
pub(crate) fn print(data: &[u8]) -> Result<(), Failure> {
    match write(data) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(unwritten(&error)),
        _ => Ok(()),
    }
}

/// Writes to stdout what has to arrive: a reader that has gone away is a failure.
pub(crate) fn deliver(data: &[u8]) -> Result<(), Failure> {
    write(data).map_err(|error| unwritten(&error))
}

fn write(data: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(data).and_then(|()| stdout.flush())
}

fn unwritten(error: &std::io::Error) -> Failure {
    Failure::new(Exit::Unavailable, format!("stdout cannot be written: {error}"))
}

/// Writes a value to stdout as one line of JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(json_line(value)?.as_bytes())
}

/// A value as one line of JSON.
pub(crate) fn json_line(value: &impl Serialize) -> Result<String, Failure> {
    let mut line = serde_json::to_string(value)
        .map_err(|error| Failure::new(Exit::Unavailable, format!("no JSON for the answer: {error}")))?;
    line.push('\n');
    Ok(line)
}
