//! What became of the tests: per program, and together.

use std::fmt;
use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    /// Those that are marked to be ignored.
    pub(crate) skipped: u32,
}

impl Counts {
    /// From the line a test program ends with: `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    pub(crate) fn in_output(output: &str) -> Option<Self> {
        let line = output.lines().rev().find_map(|line| line.strip_prefix("test result: "))?;
        let count = |what: &str| {
            let (before, _) = line.split_once(what)?;
            before.rsplit(' ').next()?.parse().ok()
        };
        Some(Self { passed: count(" passed;")?, failed: count(" failed;")?, skipped: count(" ignored;")? })
    }
}

/// What became of one program.
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) counts: Counts,
    pub(crate) took: Duration,
    /// Why it is not good, if it is not.
    pub(crate) failure: Option<String>,
    /// Its whole output.
    pub(crate) said: String,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { passed, failed, skipped } = self.counts;
        let verdict = if self.failure.is_some() { "FAILED" } else { "ok" };
        write!(f, "{verdict:<7}{:<30}{passed:>5} passed", self.name)?;
        if failed > 0 {
            write!(f, ", {failed} failed")?;
        }
        if skipped > 0 {
            write!(f, ", {skipped} skipped")?;
        }
        write!(f, "  {:.1} s", self.took.as_secs_f64())?;
        match &self.failure {
            None => Ok(()),
            Some(why) => {
                write!(
                    f,
                    "\n---- {}: {why}; its output:\n{}\n---- end of {}",
                    self.name,
                    self.said.trim_end(),
                    self.name
                )
            }
        }
    }
}

/// All programs together.
#[derive(Default)]
pub(crate) struct Report {
    counts: Counts,
    /// The programs that failed.
    failed: Vec<String>,
}

impl Report {
    pub(crate) fn add(&mut self, outcome: &Outcome) {
        self.counts.passed += outcome.counts.passed;
        self.counts.skipped += outcome.counts.skipped;
        self.counts.failed += outcome.counts.failed;
        if outcome.failure.is_some() {
            self.failed.push(outcome.name.clone());
            // A program that crashed or hung has no failed test, and is a failure all the same.
            self.counts.failed += u32::from(outcome.counts.failed == 0);
        }
    }

    /// Whether all went well. That nothing ran is a mistake in a filter, or tests that are gone.
    pub(crate) fn is_good(&self) -> bool {
        self.failed.is_empty() && self.counts.failed == 0 && self.counts.passed > 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.failed.is_empty() {
            writeln!(f, "failed: {}", self.failed.join(", "))?;
        }
        let Counts { passed, failed, skipped } = self.counts;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(counts: Counts, failure: Option<&str>) -> Outcome {
        let (name, said) = ("it".to_owned(), "what it said\n".to_owned());
        Outcome { name, counts, took: Duration::from_millis(1500), failure: failure.map(str::to_owned), said }
    }

    #[test]
    fn counts_are_in_the_last_line_that_has_them() {
        let line = "test result: FAILED. 9 passed; 2 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.11s";
        let said = format!("test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured\n{line}\n\n");
        assert_eq!(Counts::in_output(&said), Some(Counts { passed: 9, failed: 2, skipped: 1 }));
        assert_eq!(Counts::in_output("thread 'main' panicked"), None);
    }

    #[test]
    fn a_program_that_crashed_counts_as_one_failure() {
        let mut report = Report::default();
        assert!(!report.is_good(), "nothing ran");
        report.add(&outcome(Counts { passed: 3, failed: 0, skipped: 1 }, None));
        assert!(report.is_good());
        report.add(&outcome(Counts::default(), Some("signal: 11")));
        report.add(&outcome(Counts { passed: 1, failed: 2, skipped: 0 }, Some("exit status: 101")));
        assert!(!report.is_good());
        assert_eq!(report.to_string(), "failed: it, it\n4 passed, 3 failed, 1 skipped");
    }

    #[test]
    fn the_output_is_shown_of_what_failed_only() {
        let good = outcome(Counts { passed: 3, failed: 0, skipped: 1 }, None).to_string();
        assert!(good.contains("3 passed, 1 skipped  1.5 s") && !good.contains("what it said"), "{good}");
        let bad = outcome(Counts::default(), Some("signal: 11")).to_string();
        assert!(bad.contains("signal: 11; its output:\nwhat it said\n"), "{bad}");
    }
}
