//! One connection with many histories under way: what is due goes out together, and what comes back is compared.
//!
//! Redis counts in whole milliseconds, and the moment a call begins is not quite the moment its script reads the
//! clock. So nothing is asked while a claim is about to die; should one die too near to an operation all the same,
//! its history is left.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{Cmd, Connection, ConnectionLike as _, Pipeline, PubSub, Value};

use super::super::node::LAST_KEY;
use super::super::script::INSPECT;
use super::super::{memo, op, state, wire};
use super::compare::compare_counts;
use super::coverage::{Coverage, Seen};
use super::history::{History, Logged};
use super::{Form, Scripts};
use crate::backend::{Event, MemoWrite};
use crate::clock::{Clock as _, Moment, SystemClock};
use crate::machine::{Applied, Op, apply_reaching};

/// Histories under way at a time.
const UNDER_WAY: usize = 120;
/// Operations sent before the answers are looked at.
const AT_ONCE: usize = 24;
/// How long the server may take for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Operations in one call at most.
const TOGETHER: u32 = 6;
/// How near a claim's end and an operation may be, in microseconds, if the server is not held up.
const NEAR: u64 = 3_000;
/// Until then an operation that is about to be sent has surely come, on a machine that is not too busy.
const SOON: u64 = 12_000;
/// A server that was held up for this long tells nothing.
const HELD_UP: u64 = 25_000;
/// How far ahead of the server's clock tokens are that a client has seen: less than any claim lives, since a name
/// whose claims have all died leaves nothing but the clock.
const AHEAD: u64 = 40_000;

/// Where the script and the machine part.
#[derive(Debug)]
pub(super) struct Mismatch {
    pub(super) seed: u64,
    pub(super) log: String,
}

pub(super) struct Lane {
    main: Connection,
    digest: String,
    memo_digest: String,
    form: Form,
    channels: Arc<str>,
    next_seed: u64,
    index: u64,
    coverage: Coverage,
    /// Whether another lane has failed.
    stop: Arc<AtomicBool>,
}

/// A call under way: the histories, by their place, and what each asks.
enum Asked {
    Ops(Vec<(usize, Op)>),
    Memo(usize, MemoWrite),
}

/// Whether somebody listens, as `PUBSUB NUMSUB` counts: patterns do not count.
pub(super) fn hears(channel: &str) -> bool {
    channel.contains(":heard")
}

fn wall() -> u64 {
    SystemClock.wall_micros()
}

impl Lane {
    pub(super) fn open(url: &str, scripts: &Scripts, form: Form, seed: u64, stop: Arc<AtomicBool>) -> Self {
        let mut main = redis::Client::open(url).unwrap().get_connection().unwrap();
        // A script that never ends is a difference too.
        main.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        let mut load = |script: &str| redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut main).unwrap();
        let (digest, memo_digest) = (load(&scripts.native), load(&scripts.memo));
        let _: Value = INSPECT.call(true).arg(1).arg("nobody's").query(&mut main).unwrap();
        Self {
            main,
            digest,
            memo_digest,
            form,
            channels: format!("tenure:check:{}:", u8::from(form.ahead)).into(),
            next_seed: seed,
            index: 1,
            coverage: Coverage::default(),
            stop,
        }
    }

    fn begin(&mut self) -> History {
        let history = History::new(self.next_seed, self.index, self.channels.clone(), Moment(wall()));
        (self.next_seed, self.index) = (self.next_seed.wrapping_add(1), self.index + 1);
        history
    }

    /// Runs this many histories to their end.
    pub(super) fn run(mut self, url: &str, histories: u64) -> Result<Coverage, Mismatch> {
        let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        connection.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        let mut inbox = connection.as_pubsub();
        for channel in ["heard0", "heard1", "sync"] {
            inbox.subscribe(format!("{}{channel}", self.channels)).unwrap();
        }
        inbox.psubscribe(format!("{}deaf*", self.channels)).unwrap();
        let mut begun = histories.min(UNDER_WAY as u64);
        let mut under_way: VecDeque<History> = (0..begun).map(|_| self.begin()).collect();
        while !under_way.is_empty() && !self.stop.load(Ordering::Relaxed) {
            let ready = self.ready(&under_way);
            if ready.is_empty() {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            self.step(&mut under_way, &ready, &mut inbox).inspect_err(|_| self.stop.store(true, Ordering::Relaxed))?;
            let mut going = VecDeque::new();
            // Those that were asked go to the end.
            let last = ready.iter().max().copied().unwrap_or(0);
            let mut asked = Vec::new();
            for (place, history) in under_way.drain(..).enumerate() {
                if history.spoiled {
                    self.coverage.spoiled += 1;
                    assert!(
                        self.coverage.spoiled <= 200 + 4 * histories,
                        "the machine is too busy: claims die during operations all the time"
                    );
                    asked.push(self.begin());
                } else if history.steps_left == 0 {
                    self.coverage.histories += 1;
                    if begun < histories {
                        begun += 1;
                        asked.push(self.begin());
                    }
                } else if place <= last {
                    asked.push(history);
                } else {
                    going.push_back(history);
                }
            }
            going.extend(asked);
            under_way = going;
        }
        Ok(self.coverage)
    }

    /// The places of some that may be asked now.
    fn ready(&self, under_way: &VecDeque<History>) -> Vec<usize> {
        let now = wall();
        let may = |history: &History| {
            let near = NEAR + history.slop + 1_000;
            history.due.0 <= now && !history.dies_between(now.saturating_sub(near), now + near + SOON)
        };
        under_way.iter().enumerate().filter(|(_, history)| may(history)).map(|(place, _)| place).take(AT_ONCE).collect()
    }

    /// Asks each of these histories' next operation, and compares what comes back.
    fn step(
        &mut self,
        under_way: &mut VecDeque<History>,
        ready: &[usize],
        inbox: &mut PubSub<'_>,
    ) -> Result<(), Mismatch> {
        let calls = draw(under_way, ready);
        let mut pipeline = Pipeline::new();
        for asked in &calls {
            pipeline.cmd("TIME").add_command(self.call(asked, under_way));
            for place in places(asked) {
                let mut inspect = INSPECT.call(false);
                inspect.arg(1).arg(op::key(&under_way[place].name));
                pipeline.add_command(inspect).cmd("GET").arg(memo::key(&under_way[place].name));
            }
            pipeline.cmd("TIME");
        }
        pipeline.cmd("PUBLISH").arg(format!("{}sync", self.channels)).arg("");
        let answers = pipeline.len();
        let silent = |error: redis::RedisError| mismatch(&under_way[ready[0]], &format!("no answer: {error}"));
        let values = self.main.req_packed_commands(&pipeline.get_packed_pipeline(), 0, answers).map_err(silent)?;
        let mut values = values.into_iter();
        let mut news = hear(inbox).map_err(silent)?;
        for asked in &calls {
            let begun = moment_of(&values.next().unwrap());
            let answers = match values.next() {
                Some(Value::Array(answers)) => answers,
                other => return Err(mismatch(&under_way[places(asked)[0]], &format!("not an answer: {other:?}"))),
            };
            let inspected: Vec<Value> = values.by_ref().take(2 * places(asked).len()).collect();
            let time = (begun, moment_of(&values.next().unwrap()));
            self.compare(under_way, asked, time, answers, &inspected, &mut news)?;
        }
        Ok(())
    }

    fn call(&self, asked: &Asked, under_way: &VecDeque<History>) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        let asked = match asked {
            Asked::Ops(asked) => asked,
            Asked::Memo(place, write) => {
                under_way[*place].wire_memo(write).write_args(command.arg(&self.memo_digest));
                return command;
            }
        };
        let ops: Vec<op::Op> = asked.iter().map(|(place, op)| under_way[*place].wire(op)).collect();
        command.arg(&self.digest).arg(ops.len() + usize::from(self.form.per_server));
        if self.form.per_server {
            command.arg(LAST_KEY);
        }
        for op in &ops {
            command.arg(op.key());
        }
        let seen = if self.form.ahead && rand::random_ratio(1, 20) { wall() + AHEAD } else { 0 };
        command.arg(u8::from(self.form.per_server)).arg(seen);
        for op in &ops {
            op.write_args(&mut command);
        }
        command
    }

    fn compare(
        &mut self,
        under_way: &mut VecDeque<History>,
        asked: &Asked,
        (begun, over): (u64, u64),
        answers: Vec<Value>,
        inspected: &[Value],
        news: &mut HashMap<u64, Vec<(Arc<str>, Event)>>,
    ) -> Result<(), Mismatch> {
        let places = places(asked);
        self.note_call(asked, places.len());
        let ended = inspected.first().map_or(begun, moment_of_inspected);
        // A call that needs no clock does not read it.
        let read = wire::number(&answers[0]).unwrap();
        let (now, held_up) = (if read == 0 { begun } else { read }, ended - begun);
        // Whether it is not known which of two things came first.
        let spoils = |history: &mut History| {
            history.slop = history.slop.max(held_up);
            let near = NEAR + history.slop;
            history.spoiled |= held_up > HELD_UP || history.dies_between(now - near, now + near);
            history.spoiled
        };
        match asked {
            Asked::Ops(asked) => {
                for (nth, (place, op)) in asked.iter().enumerate() {
                    let history = &mut under_way[*place];
                    if !spoils(history) {
                        let mut empty = Vec::new();
                        let told = news.get_mut(&history.index).unwrap_or(&mut empty);
                        self.coverage.apply(history, op, Moment(now), &answers[nth + 1], told)?;
                    }
                }
            }
            Asked::Memo(place, write) => {
                let history = &mut under_way[*place];
                if !spoils(history) {
                    let applied = self.coverage.apply_memo(history, write, Moment(now), &Value::Array(answers));
                    applied.map_err(|why| mismatch(history, &why))?;
                }
            }
        }
        for (place, looked) in places.iter().zip(inspected.chunks_exact(2)) {
            let [value, memo] = looked else { unreachable!("two looks at each name") };
            let history = &mut under_way[*place];
            let (at, state) = state::queue(value).map_err(|error| mismatch(history, &error.to_string()))?;
            let slack = NEAR + history.slop + (over - now);
            if history.spoiled {
                continue;
            }
            let fail = |history: &History, why: String| Err(mismatch(history, &format!("{why}\n{value:?}")));
            if let Some(events) = news.get(&history.index).filter(|events| !events.is_empty()) {
                return fail(history, format!("nobody expected {events:?}"));
            }
            let record = record_of(value);
            let mut same = compare_counts(record, &state);
            if !history.dies_between(at.0 - slack, at.0 + slack) {
                self.coverage.count("a state compared");
                same = same.and_then(|()| history.compare_state(&state, at, slack));
            }
            same = same.and_then(|()| history.compare_memo(memo, at));
            if let Err(why) = same {
                return fail(history, why);
            }
            self.note_record(history, record);
            history.steps_left -= 1;
            history.due = Moment(wall()) + history.pause();
        }
        Ok(())
    }

    fn note_call(&mut self, asked: &Asked, names: usize) {
        let Asked::Ops(asked) = asked else { return };
        if asked.len() > 1 {
            self.coverage.count("a call of several operations");
        }
        if names < asked.len() {
            self.coverage.count("a call with a name twice");
        }
        if let [(_, Op::Release { .. }), (_, Op::Release { .. }), ..] = asked.as_slice() {
            self.coverage.count("a call that begins with releases");
            if asked[0].0 == asked[1].0 {
                self.coverage.count("a call that begins with releases of one name");
            }
        }
    }

    fn note_record(&mut self, history: &mut History, record: &str) {
        let record = record.bytes().next().unwrap_or(b' ');
        match (history.record, record) {
            (b'1' | b'B', b'q') => self.coverage.count("one claim becomes a queue"),
            (b'q', b' ' | b'f') => self.coverage.count("a queue becomes free"),
            _ => {}
        }
        history.record = record;
    }
}

impl Coverage {
    /// One operation on the machine, beside the server's answer and what it told.
    fn apply(
        &mut self,
        history: &mut History,
        op: &Op,
        now: Moment,
        answer: &Value,
        told: &mut Vec<(Arc<str>, Event)>,
    ) -> Result<(), Mismatch> {
        let before = history.queue.clone();
        let applied = apply_reaching(&mut history.queue, op.clone(), now, now.0, |claim| hears(&claim.inbox));
        history.log.push(Logged::Op(now, op.clone(), applied.clone(), answer.clone()));
        let (after, record) = (&history.queue, history.record);
        self.note(&Seen { before: &before, op, applied: &applied, after, now, record });
        history.asked_at = now;
        let slack = NEAR + history.slop;
        history
            .compare_answer(op, answer, &applied.outcome, slack)
            .and_then(|()| history.compare_news(op, &applied, told))
            .map_err(|why| mismatch(history, &why))
    }
}

fn mismatch(history: &History, why: &str) -> Mismatch {
    let mut log = String::new();
    for logged in &history.log {
        log += &match logged {
            Logged::Op(now, op, Applied { outcome, grants }, answer) => {
                format!("{now:?} {op:?}\n    machine: {outcome:?} {grants:?}\n    server: {answer:?}\n")
            }
            Logged::Memo(now, write, written, answer) => {
                format!("{now:?} {write:?}\n    machine: {written:?}\n    server: {answer:?}\n")
            }
        };
    }
    Mismatch { seed: history.seed, log: format!("{log}machine: {:?} {:?}\n{why}", history.queue, history.memo) }
}

/// The next operations of these histories, as calls of one or several.
fn draw(under_way: &mut VecDeque<History>, ready: &[usize]) -> Vec<Asked> {
    let now = Moment(wall());
    let mut calls: Vec<Asked> = Vec::new();
    let mut room = 0;
    for place in ready {
        let twice = rand::random_ratio(1, 12);
        let history = &mut under_way[*place];
        if history.wants_memo() {
            calls.push(Asked::Memo(*place, history.draw_memo(now)));
            room = 0;
            continue;
        }
        let mut ops = vec![(*place, history.draw(now, !twice))];
        if twice {
            ops.push((*place, history.draw(now, false)));
        }
        match calls.last_mut().filter(|_| room > 0) {
            Some(Asked::Ops(call)) => {
                room -= 1;
                call.append(&mut ops);
            }
            _ => {
                room = if rand::random_ratio(1, 3) { rand::random_range(0..TOGETHER) } else { 0 };
                calls.push(Asked::Ops(ops));
            }
        }
    }
    calls
}

/// The histories of a call, each once.
fn places(asked: &Asked) -> Vec<usize> {
    let mut places: Vec<usize> = match asked {
        Asked::Ops(asked) => asked.iter().map(|(place, _)| *place).collect(),
        Asked::Memo(place, _) => vec![*place],
    };
    places.dedup();
    places
}

/// What was told on which channel, by history.
type News = HashMap<u64, Vec<(Arc<str>, Event)>>;

/// All that was told up to now.
fn hear(inbox: &mut PubSub<'_>) -> redis::RedisResult<News> {
    let mut news = News::new();
    loop {
        let message = inbox.get_message()?;
        let channel = message.get_channel_name();
        if channel.ends_with(":sync") {
            return Ok(news);
        }
        let event = wire::event(std::str::from_utf8(message.get_payload_bytes()).unwrap()).unwrap();
        let (Event::Granted { id, .. } | Event::Ended { id, .. }) = &event else { panic!("{event:?}") };
        news.entry(id.0 >> 40).or_default().push((channel.into(), event));
    }
}

fn moment_of(time: &Value) -> u64 {
    let Value::Array(parts) = time else { panic!("not a time") };
    wire::number(&parts[0]).unwrap() * 1_000_000 + wire::number(&parts[1]).unwrap()
}

fn record_of(inspected: &Value) -> &str {
    let Value::Array(parts) = inspected else { panic!("not a state") };
    wire::text(&parts[1]).unwrap()
}

fn moment_of_inspected(value: &Value) -> u64 {
    let Value::Array(parts) = value else { panic!("not a state") };
    wire::number(&parts[0]).unwrap()
}
