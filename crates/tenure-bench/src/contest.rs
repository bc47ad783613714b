//! Several processes that want one name, from the same moment on.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_load::epoch_micros;
use tenure_testkit::servers::Redis;

use crate::child::Child;
use crate::contestant::Contestant;
use crate::server::{Looker, Monitor};
use crate::stats::contest;

/// One contest.
#[derive(Clone, Copy, Debug)]
pub struct Contest<'a> {
    /// Who takes part, as often as there are processes.
    pub contestant: &'a Contestant,
    /// Where the store is.
    pub urls: &'a [String],
    /// What names begin with: nobody used them before.
    pub prefix: &'a str,
    /// How many processes.
    pub processes: usize,
    /// How many tasks each.
    pub tasks: usize,
    /// How long.
    pub seconds: f64,
    /// How long starting and answering may take beyond that.
    pub patience: Duration,
}

impl Contest<'_> {
    /// Holds it, and looks at the server's CPU meanwhile.
    ///
    /// # Errors
    ///
    /// If a process fails or takes too long.
    pub fn hold(&self, server: Option<&Redis>) -> Result<Value, String> {
        let mut looker = server.map(Looker::new).transpose()?;
        let mut cpu = Vec::new();
        let mut look = || {
            if let Some(looker) = &mut looker {
                cpu.push(looker.look()?.cpu_s);
            }
            Ok(())
        };
        let (answers, _) = self.course(&mut look)?;
        let mut result = contest(&answers, self.tasks, self.seconds)?;
        if let [before, after] = cpu[..] {
            let each = (after - before) * 1e6 / result["acquisitions"].as_f64().unwrap_or(f64::NAN);
            result["server_cpu_s"] = json!(after - before);
            result["server_us_per_acquisition"] = json!(each);
        }
        Ok(result)
    }

    /// Holds it, and counts what clients send to the server meanwhile; that slows the server down, so the rate is not
    /// to be looked at.
    ///
    /// # Errors
    ///
    /// If a process fails or takes too long.
    pub fn count(&self, server: &Redis) -> Result<Value, String> {
        let monitor = Monitor::begin(server)?;
        let (answers, start) = self.course(&mut || Ok(()))?;
        let start = start as f64 / 1e6;
        let commands = monitor.end(start, start + self.seconds);
        let acquisitions = contest(&answers, self.tasks, self.seconds)?["acquisitions"].as_f64().unwrap_or(f64::NAN);
        let each = commands as f64 / acquisitions;
        Ok(json!({ "commands": commands, "acquisitions": acquisitions, "commands_per_acquisition": each }))
    }

    /// What each process answered, and when they began. `look` is called at the start and at the end.
    fn course(&self, look: &mut dyn FnMut() -> Result<(), String>) -> Result<(Vec<Value>, u64), String> {
        let order = json!({ "urls": self.urls, "tasks": self.tasks, "name": format!("{}/hot", self.prefix),
            "prefix": self.prefix, "warmup_pairs": warmup_pairs(self.contestant, self.processes), "seconds": self.seconds });
        let limit = Duration::from_secs_f64(self.seconds) + self.patience;
        let start = |_| self.contestant.start_within("hot", order.clone(), limit);
        let mut children: Vec<Child> = (0..self.processes).map(start).collect::<Result<_, _>>()?;
        children.iter_mut().try_for_each(|child| child.expect("ready"))?;
        let start = epoch_micros() + 100_000 + 5_000 * self.processes as u64;
        children.iter_mut().try_for_each(|child| child.tell(&start.to_string()))?;
        sleep_until(start);
        look()?;
        sleep_until(start + (self.seconds * 1e6) as u64);
        look()?;
        let answers = children.into_iter().map(Child::result).collect::<Result<_, _>>()?;
        Ok((answers, start))
    }
}

/// How many pairs each process does before it is ready. Thirty-two that start slowly would take too long for as many as eight do.
pub fn warmup_pairs(contestant: &Contestant, processes: usize) -> usize {
    match processes {
        _ if !contestant.starts_slowly() => 200,
        ..=8 => 3_000,
        _ => 500,
    }
}

/// Sleeps until a time in microseconds since the Unix epoch.
pub fn sleep_until(epoch_us: u64) {
    thread::sleep(Duration::from_micros(epoch_us.saturating_sub(epoch_micros())));
}
