use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::super::utc;
use super::*;

const HOUR: u64 = 3_600_000;
const MINUTE: u64 = 60_000;
/// 2026-11-18T08:00:00Z
const EIGHT: u64 = 1_794_988_800_000;

fn hourly() -> Schedule {
    Schedule::every(Duration::from_secs(3_600)).unwrap()
}

fn rules(schedule: Schedule) -> Rules {
    Rules { schedule, missed: Missed::Skip, retry: 0, reschedule: false }
}

fn entry(schedule: &Schedule, slot: &Slot, attempt: u32, outcome: Option<&str>, started: u64) -> Entry {
    Entry {
        schedule: schedule.text(),
        slot: slot.name.clone(),
        attempt,
        by: "host".to_owned(),
        started: utc::text(started),
        ended: outcome.map(|_| utc::text(started + 1)),
        outcome: outcome.map(str::to_owned),
    }
}

/// What is decided at eight, in a few words, for a record of one run that was begun so many slots ago.
fn decided(
    change: impl FnOnce(&mut Rules),
    last: Option<(i64, u32, Option<&str>)>,
    now: u64,
    holder: Holder,
) -> String {
    let mut rules = rules(hourly());
    change(&mut rules);
    let asked = hourly().at(EIGHT).unwrap();
    let record = last.map(|(ago, attempt, outcome)| {
        let begins = EIGHT.checked_add_signed(-ago * i64::try_from(HOUR).unwrap()).unwrap();
        Record::default().with(entry(&hourly(), &hourly().at(begins).unwrap(), attempt, outcome, begins))
    });
    match decide(&record.unwrap_or_default(), &asked, now, &rules, holder).unwrap() {
        Decision::Run { slot, attempt } => format!("run {} attempt {attempt}", &slot.name[11..16]),
        Decision::Skip(why) => format!("skip {why:?}").split(['(', ' ']).take(2).collect::<Vec<_>>().join(" "),
        Decision::WaitForSlot { until } => format!("wait until {}", &utc::text(until)[11..16]),
        Decision::WaitForHolder => "wait".to_owned(),
        Decision::Refuse(refusal) => {
            format!("refuse {refusal:?}").split([' ', '{']).take(2).collect::<Vec<_>>().join(" ")
        }
    }
}

#[test]
fn the_rule_case_by_case() {
    const RUNS: Holder = Holder::Recorder { renewed: true };
    const MAY_RUN: Holder = Holder::Recorder { renewed: false };
    let (us, other, unknown) = (Holder::Us, Holder::Other, Holder::Unknown);
    let ok = Some("ok");
    let failed = Some("exit 1");
    for (retry, last, holder, expected) in [
        // Nobody has run anything.
        (0, None, us, "run 08:00 attempt 1"),
        (0, None, other, "wait"),
        (0, None, unknown, "wait"),
        // An earlier slot was run, failed, or its end was not recorded.
        (0, Some((1, 1, ok)), us, "run 08:00 attempt 1"),
        (0, Some((1, 1, failed)), us, "run 08:00 attempt 1"),
        (0, Some((1, 1, None)), us, "run 08:00 attempt 1"),
        (0, Some((1, 1, None)), RUNS, "skip PredecessorRuns"),
        (3, Some((1, 1, None)), RUNS, "skip PredecessorRuns"),
        (0, Some((1, 1, None)), MAY_RUN, "wait"),
        (0, Some((1, 1, None)), other, "wait"),
        (0, Some((1, 1, ok)), RUNS, "wait"),
        // This slot was run.
        (0, Some((0, 1, ok)), us, "skip Done"),
        (3, Some((0, 1, ok)), us, "skip Done"),
        (0, Some((0, 1, ok)), unknown, "skip Done"),
        // It failed.
        (0, Some((0, 1, failed)), us, "skip Failed"),
        (0, Some((0, 1, failed)), unknown, "skip Failed"),
        (1, Some((0, 1, failed)), us, "run 08:00 attempt 2"),
        (1, Some((0, 1, failed)), unknown, "wait"),
        (1, Some((0, 2, failed)), us, "skip Failed"),
        // It was begun.
        (0, Some((0, 1, None)), RUNS, "skip Runs"),
        (1, Some((0, 1, None)), RUNS, "wait"),
        (0, Some((0, 1, None)), MAY_RUN, "wait"),
        (0, Some((0, 1, None)), unknown, "wait"),
        (0, Some((0, 1, None)), other, "skip Unended"),
        (0, Some((0, 1, None)), us, "skip Unended"),
        (1, Some((0, 1, None)), us, "run 08:00 attempt 2"),
        (1, Some((0, 2, None)), us, "skip Unended"),
        // A later one was recorded: the store's clock went back.
        (0, Some((-1, 1, ok)), us, "refuse Ahead"),
        (0, Some((-1, 1, ok)), unknown, "refuse Ahead"),
    ] {
        let decision = decided(|rules| rules.retry = retry, last, EIGHT + MINUTE, holder);
        assert_eq!(decision, expected, "retry {retry}, {last:?}, {holder:?}");
    }
}

#[test]
fn times_around_the_slot() {
    let at = |now, last, holder, missed| decided(|rules| rules.missed = missed, last, now, holder);
    let ok = Some((-1, 1, Some("ok")));
    for (now, last, holder, missed, expected) in [
        // Before it: waited for within a minute.
        (EIGHT - MINUTE, None, Holder::Unknown, Missed::Skip, "wait until 08:00"),
        (EIGHT - MINUTE, None, Holder::Us, Missed::Skip, "wait until 08:00"),
        (EIGHT - MINUTE - 1, None, Holder::Us, Missed::Skip, "refuse WentBack"),
        // Over at the grant, and only there.
        (EIGHT + HOUR - 1, None, Holder::Us, Missed::Skip, "run 08:00 attempt 1"),
        (EIGHT + HOUR, None, Holder::Us, Missed::Skip, "skip Over"),
        (EIGHT + HOUR, None, Holder::Us, Missed::Run, "run 09:00 attempt 1"),
        (EIGHT + HOUR, ok, Holder::Us, Missed::Run, "skip Done"),
        (EIGHT + HOUR, None, Holder::Other, Missed::Skip, "wait"),
        (EIGHT + HOUR, Some((-1, 1, None)), Holder::Recorder { renewed: true }, Missed::Skip, "skip Runs"),
        (EIGHT + HOUR, ok, Holder::Other, Missed::Skip, "wait"),
        // A record that is ahead is waited for within a minute.
        (EIGHT + HOUR - MINUTE, ok, Holder::Us, Missed::Skip, "wait until 09:00"),
        (EIGHT + HOUR - MINUTE - 1, ok, Holder::Us, Missed::Skip, "refuse Ahead"),
    ] {
        assert_eq!(at(now, last, holder, missed), expected, "{} {last:?} {holder:?}", utc::text(now));
    }
}

#[test]
fn another_schedule_is_refused_and_replaced_only_forward() {
    let half = Schedule::every(Duration::from_secs(1_800)).unwrap();
    let now = EIGHT + 40 * MINUTE;
    let asked = half.at(now).unwrap();
    let run =
        |started, outcome| Record::default().with(entry(&hourly(), &hourly().at(EIGHT).unwrap(), 1, outcome, started));
    let mut rules = rules(half.clone());
    let decision = decide(&run(EIGHT + 1, Some("ok")), &asked, now, &rules, Holder::Us).unwrap();
    assert_eq!(decision, Decision::Refuse(Refusal::OtherSchedule { recorded: "every 1h".to_owned() }));
    rules.reschedule = true;
    let decide = |record: &Record, holder| decide(record, &asked, now, &rules, holder).unwrap();
    let first = Decision::Run { slot: asked.clone(), attempt: 1 };
    assert_eq!(decide(&run(EIGHT + 1, Some("ok")), Holder::Us), first);
    assert!(matches!(decide(&run(EIGHT + 35 * MINUTE, None), Holder::Us), Decision::Skip(Why::Rescheduled(_))));
    assert!(matches!(decide(&run(now + HOUR, None), Holder::Us), Decision::Refuse(Refusal::Ahead { .. })));
    let runs = Holder::Recorder { renewed: true };
    assert!(matches!(decide(&run(EIGHT + 1, None), runs), Decision::Skip(Why::PredecessorRuns(_))));
}

/// What a host is doing.
#[derive(Clone, Debug)]
enum State {
    Idle,
    Early(Slot),
    Queued(Slot),
    Holding(Slot),
    Running(Slot),
}

/// A fleet over a store, as far as the rule is concerned.
struct Fleet {
    random: StdRng,
    /// The store's clock.
    now: u64,
    record: Record,
    written_under: u64,
    tokens: u64,
    /// Which host holds, with which token; a dead one has no host.
    holder: Option<(Option<usize>, u64)>,
    queue: VecDeque<usize>,
    hosts: Vec<(Rules, State)>,
    /// How often each slot was started, and whether it ended well.
    starts: HashMap<String, (u32, bool)>,
    skips: HashMap<&'static str, u32>,
}

impl Fleet {
    fn new(seed: u64, schedule: &Schedule, retry: u32, now: u64) -> Self {
        let random = StdRng::seed_from_u64(seed);
        let host = |number: usize| {
            let mut rules = Rules { retry, ..rules(schedule.clone()) };
            if number.is_multiple_of(3) {
                rules.missed = Missed::Run;
            }
            // One host of all has another schedule, and may not run under this name.
            if number == 7 {
                rules.schedule = Schedule::every(Duration::from_secs(2_000)).unwrap();
            }
            (rules, State::Idle)
        };
        Self {
            random,
            now,
            record: Record::default(),
            written_under: 0,
            tokens: 0,
            holder: None,
            queue: VecDeque::new(),
            hosts: (0..8).map(host).collect(),
            starts: HashMap::new(),
            skips: HashMap::new(),
        }
    }

    fn chance(&mut self, of: u32) -> bool {
        self.random.random_range(0..of) == 0
    }

    /// One thing happens.
    fn step(&mut self, span: u64) {
        match self.random.random_range(0..100) {
            0..30 => self.now += self.random.random_range(0..span),
            // An administrator sets the store's clock, or it drifts back.
            30 => self.now += self.random.random_range(0..span * 2),
            31 => self.now -= self.random.random_range(0..span * 2),
            32..36 => self.now -= self.random.random_range(0..50_000),
            36..40 => self.holder = self.holder.filter(|(host, _)| host.is_some()),
            _ => {
                let host = self.random.random_range(0..self.hosts.len());
                self.act(host);
            }
        }
        if self.holder.is_none()
            && let Some(next) = self.queue.pop_front()
        {
            self.tokens += 1;
            self.holder = Some((Some(next), self.tokens));
            let State::Queued(slot) = self.hosts[next].1.clone() else { panic!("it does not wait") };
            self.hosts[next].1 = State::Holding(slot);
        }
    }

    fn act(&mut self, host: usize) {
        let (rules, state) = self.hosts[host].clone();
        match state {
            State::Idle => {
                let slot = rules.schedule.meant_at(self.now).unwrap();
                self.consider(host, &slot, Holder::Unknown);
            }
            State::Early(slot) => self.consider(host, &slot, Holder::Unknown),
            State::Queued(slot) => {
                let holder = match self.holder {
                    Some((alive, token)) if token == self.written_under => {
                        let looked_long_enough = self.chance(2);
                        Holder::Recorder { renewed: alive.is_some() && looked_long_enough }
                    }
                    _ => Holder::Other,
                };
                self.consider(host, &slot, holder);
            }
            State::Holding(_) | State::Running(_) if self.chance(8) => self.die(host),
            State::Holding(slot) => self.consider(host, &slot, Holder::Us),
            State::Running(slot) => self.end(host, &slot),
        }
    }

    /// It is killed: its claim stands until it expires.
    fn die(&mut self, host: usize) {
        self.holder = self.holder.map(|(_, token)| (None, token));
        self.hosts[host].1 = State::Idle;
    }

    fn leave(&mut self, host: usize) {
        self.queue.retain(|waiting| *waiting != host);
        self.holder = self.holder.filter(|(holder, _)| *holder != Some(host));
        self.hosts[host].1 = State::Idle;
    }

    fn end(&mut self, host: usize, slot: &Slot) {
        let well = !self.chance(3);
        let started = self.record.last().unwrap().started_ms();
        self.record = self.record.with_end(started + 1, if well { "ok" } else { "exit 1" });
        self.starts.get_mut(&slot.name).unwrap().1 |= well;
        self.leave(host);
    }

    fn consider(&mut self, host: usize, slot: &Slot, holder: Holder) {
        let rules = self.hosts[host].0.clone();
        let decision = decide(&self.record, slot, self.now, &rules, holder).unwrap();
        match decision {
            Decision::Run { slot, attempt } => self.start(host, slot, attempt),
            Decision::Skip(why) => {
                self.check_skip(slot, &why);
                self.leave(host);
            }
            Decision::WaitForSlot { until } => {
                assert!(until > self.now && until - self.now <= MINUTE, "no wait is longer");
                if holder == Holder::Unknown {
                    self.hosts[host].1 = State::Early(slot.clone());
                }
            }
            Decision::WaitForHolder => {
                assert_ne!(holder, Holder::Us);
                if holder == Holder::Unknown {
                    self.queue.push_back(host);
                    self.hosts[host].1 = State::Queued(slot.clone());
                }
            }
            Decision::Refuse(Refusal::OtherSchedule { recorded }) => {
                assert_ne!(recorded, rules.schedule.text());
                self.leave(host);
            }
            Decision::Refuse(Refusal::Ahead { by_ms, .. } | Refusal::WentBack { by_ms }) => {
                assert!(by_ms > slot.early.min(1_000));
                self.leave(host);
            }
            Decision::Refuse(refusal) => panic!("{refusal:?}"),
        }
    }

    fn start(&mut self, host: usize, slot: Slot, attempt: u32) {
        let rules = &self.hosts[host].0;
        assert!(!self.hosts.iter().any(|(_, state)| matches!(state, State::Running(_))), "two run at once");
        assert!(slot.begins <= self.now, "none runs before its time");
        if let Some(last) = self.record.last() {
            let last = rules.schedule.read(&last.slot).unwrap();
            assert!((last.order, 1) < (slot.order, attempt), "slots only go forward");
        }
        let (starts, ended_well) = self.starts.entry(slot.name.clone()).or_default();
        assert!(!*ended_well, "{} was run", slot.name);
        *starts += 1;
        assert_eq!(*starts, attempt, "{} was started before", slot.name);
        assert!(*starts <= rules.retry + 1);
        self.record = self.record.with(entry(&rules.schedule, &slot, attempt, None, self.now));
        self.written_under = self.tokens;
        self.hosts[host].1 = State::Running(slot);
    }

    /// Whoever skips says why, and that is true.
    fn check_skip(&mut self, slot: &Slot, why: &Why) {
        let running = |fleet: &Self| fleet.hosts.iter().any(|(_, state)| matches!(state, State::Running(_)));
        let started = |fleet: &Self, run: &Entry| fleet.starts.contains_key(&run.slot);
        let word = match why {
            Why::Done(run) => {
                assert!(self.starts[&run.slot].1);
                "done"
            }
            Why::Failed(run) => {
                assert!(started(self, run));
                "failed"
            }
            Why::Unended(run) => {
                assert!(started(self, run));
                "unended"
            }
            Why::Runs(run) | Why::PredecessorRuns(run) => {
                assert!(running(self) && started(self, run), "{why:?}");
                if run.slot == slot.name { "runs" } else { "predecessor" }
            }
            Why::Over { present } => {
                assert_ne!(*present, slot.name);
                "over"
            }
            Why::Rescheduled(_) => panic!("nobody asked for that"),
        };
        *self.skips.entry(word).or_default() += 1;
    }
}

/// Lets so many fleets live, and counts why slots were skipped.
fn check_fleets(schedule: &Schedule, from: u64, span: u64, fleets: u64) -> HashMap<&'static str, u32> {
    let (mut runs, mut skips) = (0, HashMap::new());
    for seed in 0..fleets {
        let retry = u32::try_from(seed % 3).unwrap();
        let mut fleet = Fleet::new(seed, schedule, retry, from);
        for _ in 0..1_500 {
            fleet.step(span);
        }
        runs += fleet.starts.len();
        for (why, count) in fleet.skips {
            *skips.entry(why).or_insert(0) += count;
        }
    }
    assert!(runs > usize::try_from(fleets * 5).unwrap(), "{runs}");
    skips
}

#[test]
fn no_slot_runs_twice_whatever_clocks_kills_and_queues_do() {
    let skips = check_fleets(&hourly(), EIGHT, HOUR / 4, 400);
    for why in ["done", "failed", "unended", "runs", "predecessor", "over"] {
        assert!(skips.get(why).is_some_and(|count| *count > 20), "{why}: {skips:?}");
    }
}

#[cfg(feature = "cron")]
#[test]
fn no_slot_runs_twice_when_local_time_runs_back_or_jumps() {
    for (expression, span) in
        [("*/20 * * * *", HOUR / 12), ("30 2 * * *", HOUR * 5), ("0,15,30,45 0-4 * * *", HOUR / 6)]
    {
        let cron = super::super::cron::Cron::new(expression, "Europe/Berlin").unwrap();
        let schedule = Schedule::Cron(Box::new(cron));
        // The evenings before local time jumps, and runs back.
        for from in ["2026-03-28T20:00:00Z", "2026-10-24T20:00:00Z"] {
            check_fleets(&schedule, utc::read(from).unwrap(), span, 3);
        }
    }
}

#[test]
fn no_slot_is_lost_to_hosts_whose_clocks_run_ahead_or_behind() {
    let schedule = hourly();
    let rules = rules(schedule.clone());
    // Hosts are started by their own clocks: up to a minute early, and any time late.
    for late in [-60_i64, -59, -1, 0, 1, 600, 3_539].map(|seconds| seconds * 1_000) {
        let mut record = Record::default();
        for hour in 0..48 {
            let begins = EIGHT + hour * HOUR;
            let mut now = begins.checked_add_signed(late).unwrap();
            let slot = schedule.meant_at(now).unwrap();
            assert_eq!(slot.begins, begins, "it means the slot it was started for");
            if let Decision::WaitForSlot { until } = decide(&record, &slot, now, &rules, Holder::Unknown).unwrap() {
                now = until;
            }
            assert_eq!(decide(&record, &slot, now, &rules, Holder::Unknown).unwrap(), Decision::WaitForHolder);
            let decision = decide(&record, &slot, now, &rules, Holder::Us).unwrap();
            assert_eq!(decision, Decision::Run { slot: slot.clone(), attempt: 1 });
            record = record.with(entry(&schedule, &slot, 1, Some("ok"), now));
        }
    }
}
