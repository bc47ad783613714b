//! Raw data: a line of JSON for the run, then one for each measurement and each that is missing.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One measurement in one round.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Measured {
    /// Which question it answers.
    pub question: String,
    /// Who was measured.
    pub contestant: String,
    /// Over which store.
    pub store: String,
    /// What was varied.
    pub params: Value,
    /// In which round, from 1.
    pub round: usize,
    /// What came out.
    pub result: Value,
}

/// One that is not there.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Missing {
    /// Who.
    pub missing: String,
    /// In which question, if not in all.
    #[serde(default)]
    pub question: String,
    /// Over which store.
    #[serde(default)]
    pub store: String,
    /// With what.
    #[serde(default)]
    pub params: Value,
    /// In which round, from 1; 0 for all.
    #[serde(default)]
    pub round: usize,
    /// Why.
    pub why: String,
}

/// The file of a run, written line by line, so that a run that is ended leaves what it had.
#[derive(Debug)]
pub struct Raw {
    file: File,
    /// Where it is.
    pub path: PathBuf,
}

impl Raw {
    /// A new file, with what the run is about.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn create(path: &Path, run: &Value) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut raw = Self { file: File::create(path)?, path: path.to_owned() };
        raw.line(run)?;
        Ok(raw)
    }

    /// Writes one line.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn line(&mut self, line: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string(line).map_err(io::Error::other)?;
        self.file.write_all(format!("{text}\n").as_bytes())
    }
}
