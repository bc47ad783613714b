//! `--metrics-file`: what a run counted, as node_exporter's textfile collector reads it. So runs of cron are seen too.

use std::fs;
use std::path::{Path, PathBuf};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use crate::failure::{Failure, warn};

/// The bounds of histograms, in seconds: from a round trip to the length of a nightly job.
pub(crate) const BUCKETS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0, 3600.0];

/// A file that metrics are written to in the end.
#[derive(Debug)]
pub(crate) struct MetricsFile {
    path: PathBuf,
    /// Written first and then renamed: the collector reads a whole file, or the one before. It does not read names
    /// that do not end in `.prom`.
    unfinished: PathBuf,
    handle: PrometheusHandle,
}

impl MetricsFile {
    /// Counts from now on. A file that cannot be written is refused before anything has happened.
    pub(crate) fn prepare(path: PathBuf) -> Result<Self, Failure> {
        let refused = |why: String| Failure::usage(format!("--metrics-file {}: {why}", path.display()));
        let Some(name) = path.file_name().filter(|_| !path.is_dir()) else {
            return Err(refused("it is a directory; write the name of a file".to_owned()));
        };
        let mut unfinished = name.to_owned();
        unfinished.push(format!(".{}.tmp", std::process::id()));
        let unfinished = path.with_file_name(unfinished);
        fs::write(&unfinished, "").map_err(|error| refused(format!("it cannot be written: {error}")))?;
        let _ = fs::remove_file(&unfinished);
        let problem = |error: &dyn std::fmt::Display| refused(format!("metrics cannot be counted: {error}"));
        let builder = PrometheusBuilder::new().set_buckets(&BUCKETS).map_err(|error| problem(&error))?;
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).map_err(|error| problem(&error))?;
        Ok(Self { path, unfinished, handle })
    }

    /// Writes it. That this fails is no reason for the run to fail.
    pub(crate) fn write(&self, json: bool) {
        if let Err(error) = self.replace(&self.handle.render()) {
            let _ = fs::remove_file(&self.unfinished);
            warn(&format!("the metrics were not written to {}: {error}", self.path.display()), json);
        }
    }

    fn replace(&self, text: &str) -> std::io::Result<()> {
        let unfinished: &Path = &self.unfinished;
        fs::write(unfinished, text)?;
        fs::rename(unfinished, &self.path)
    }
}
