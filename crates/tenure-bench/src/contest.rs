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
    /// What names begin with.
    pub prefix: &'a str,
    /// How many processes.
    pub processes: usize,
    /// How many tasks each.
    pub tasks: usize,
    /// How long, once it is under way.
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
        let (answers, from) = self.course(&mut || Ok(()))?;
        let start = from as f64 / 1e6;
        let commands = monitor.end(start, start + self.seconds);
        let acquisitions = contest(&answers, self.tasks, self.seconds)?["acquisitions"].as_f64().unwrap_or(f64::NAN);
        let each = commands as f64 / acquisitions;
        Ok(json!({ "commands": commands, "acquisitions": acquisitions, "commands_per_acquisition": each }))
    }

    /// What each process answered, and since when that counts. `look` is called then and at the end.
    fn course(&self, look: &mut dyn FnMut() -> Result<(), String>) -> Result<(Vec<Value>, u64), String> {
        let lead = lead(self.contestant);
        // A name of its own: whoever held the one before may have been ended with it in its hands.
        let name = format!("{}/{:x}/hot", self.prefix, epoch_micros());
        let order = json!({ "urls": self.urls, "tasks": self.tasks, "name": name, "prefix": self.prefix,
            "warmup_pairs": warmup_pairs(self.contestant, self.processes), "seconds": lead + self.seconds });
        let limit = Duration::from_secs_f64(lead + self.seconds) + self.patience;
        let start = |_| self.contestant.start_within("hot", order.clone(), limit);
        let mut children: Vec<Child> = (0..self.processes).map(start).collect::<Result<_, _>>()?;
        children.iter_mut().try_for_each(|child| child.expect("ready"))?;
        let start = epoch_micros() + 100_000 + 5_000 * self.processes as u64;
        children.iter_mut().try_for_each(|child| child.tell(&start.to_string()))?;
        let from = start + (lead * 1e6) as u64;
        sleep_until(from);
        look()?;
        sleep_until(from + (self.seconds * 1e6) as u64);
        look()?;
        let answers: Vec<Value> = children.into_iter().map(Child::result).collect::<Result<_, _>>()?;
        Ok((answers.into_iter().map(|answer| since(answer, lead * 1e6)).collect(), from))
    }
}

/// Seconds that the contest is under way before it counts: what waits and is woken has not run before, and is
/// compiled only now where a compiler works at run time.
pub fn lead(contestant: &Contestant) -> f64 {
    if contestant.starts_slowly() { 3.0 } else { 0.2 }
}

/// The turns since a moment, and the part of the CPU time that they have in that of all turns.
fn since(mut answer: Value, from_us: f64) -> Value {
    let Some(turns) = answer["turns"].as_array().cloned() else { return answer };
    let all = turns.len();
    let got = |turn: &Value| turn[0].as_f64().unwrap_or(0.0);
    let kept: Vec<Value> = turns
        .into_iter()
        .filter(|turn| got(turn) >= from_us)
        .map(|turn| json!([got(&turn) - from_us, turn[1], turn[2]]))
        .collect();
    let part = if all == 0 { 1.0 } else { kept.len() as f64 / all as f64 };
    answer["cpu_s"] = json!(answer["cpu_s"].as_f64().unwrap_or(f64::NAN) * part);
    answer["turns"] = json!(kept);
    answer
}

/// How many pairs each process does before it is ready. Thirty-two that start slowly would take too long for as many
/// as eight do.
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
