//! `tenure serve` as a process of its own, so that its memory and its CPU time are its own.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// An instance of the service, until this is dropped.
pub(super) struct Service {
    process: Child,
    pub(super) url: String,
}

impl Service {
    pub(super) fn start(store: &str) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(own.with_file_name("tenure"));
        command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--on", store]);
        let mut process = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot run {command:?}: {error}"))?;
        let mut line = String::new();
        let told = process.stdout.take().ok_or("no output")?;
        BufReader::new(told).read_line(&mut line).map_err(|error| error.to_string())?;
        let told: Value = serde_json::from_str(&line).map_err(|_| format!("the service did not start: {line:?}"))?;
        let url = told["listening"].as_str().unwrap_or_default().to_owned();
        Ok(Self { process, url })
    }

    pub(super) fn resident_bytes(&self) -> usize {
        let told = std::fs::read_to_string(format!("/proc/{}/statm", self.process.id())).unwrap_or_default();
        let pages = told.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0);
        pages * rustix::param::page_size()
    }

    pub(super) fn cpu_s(&self) -> f64 {
        let told = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap_or_default();
        let fields = told.rsplit_once(')').map_or("", |(_, fields)| fields);
        let ticks: f64 = fields.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
        ticks / rustix::param::clock_ticks_per_second() as f64
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
