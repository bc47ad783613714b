//! The script follows the rule: the same random history goes to both, answer by answer and state by state.
//!
//! `TENURE_HISTORIES` says how many histories; `TENURE_SEED` replays one that a failure printed.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod beginning;
mod map;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use redis::Value;
use tenure_testkit::servers::Redis;

use super::ballot::{Node as Rule, Vote};
use super::wire::{self, Ending, InLine, Mine, Proposal};
use crate::backend::{ClaimRequest, RenewRequest, Shape};
use crate::backends::redis::lane::Work;
use crate::backends::redis::node::{Dialect, Node};
use crate::backends::redis::place::Place;
use crate::backends::redis::script::BALLOT_KEYS;
use crate::backends::redis::url::{Layout, Settings};
use crate::backends::redis::wire::{number, text};
use crate::clock::{Clock as _, Moment, SystemClock};
use crate::name::Name;
use crate::owner::{ClaimId, Owner};
use crate::token::Token;

const HISTORIES: u64 = 100;
/// On a busy machine a node needs longer than on a good one.
const PATIENT: &str = "node_timeout=250ms";
const OPS: usize = 60;

struct Check {
    node: Arc<Node>,
    rule: Rule<String>,
    random: StdRng,
    names: Vec<Name>,
    now: Moment,
    /// How often each thing was seen: a history that meets nothing shows nothing.
    met: BTreeMap<&'static str, u64>,
    log: Vec<String>,
}

impl Check {
    async fn ask(&mut self, work: Work) -> Value {
        let reply = self.node.call_and_keep(work, false).await.unwrap();
        self.now = reply.now;
        reply.values.into_iter().next().unwrap()
    }

    async fn command(&self, words: &[&str]) -> Value {
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(*word);
        }
        self.node.command(command).await.unwrap()
    }

    fn meet(&mut self, what: &'static str) {
        *self.met.entry(what).or_default() += 1;
    }

    fn name(&mut self) -> Name {
        self.names[self.random.random_range(0..self.names.len())].clone()
    }

    fn id(&mut self) -> ClaimId {
        ClaimId(self.random.random_range(1..=3))
    }

    fn ttl(&mut self) -> Duration {
        Duration::from_secs(self.random.random_range(30..40))
    }

    /// A token near what decides: now, what was stored last, the floor, the farthest future that is allowed.
    fn token(&mut self, name: &Name) -> Token {
        let last = self
            .rule
            .last
            .get(name.as_str())
            .or_else(|| self.rule.old.get(name.as_str()))
            .map_or(self.rule.floor.0, |last| last.0);
        let held = self.rule.held.get(name.as_str()).map_or(0, |held| held.token.0);
        let near = [last, self.now.0, self.rule.floor.0, held][self.random.random_range(0..4)];
        let by = [-3_000_000, -1, 0, 1, 2, 500_000, 8_000_000, 13_000_000][self.random.random_range(0..8)];
        let token = near.saturating_add_signed(by).max(1);
        // Not so near the limit that it depends on how long the call takes.
        let limit = self.now.0 + 10_000_000;
        Token(if token.abs_diff(limit) < 1_500_000 && token != last + 1 { limit + 2_000_000 } else { token })
    }

    async fn step(&mut self) -> Result<(), String> {
        match self.random.random_range(0..100) {
            0..35 => self.claim().await?,
            35..55 => self.renew().await?,
            55..80 => self.release().await?,
            80..88 => self.expire().await,
            88..94 => self.forget().await,
            94..97 => self.wipe().await,
            _ => {}
        }
        self.greet().await?;
        self.compare_state().await
    }

    fn vote(&self, value: &Value, token: Token) -> Vote {
        let fresh = || super::attempt::fresh(token, Duration::ZERO, 0);
        wire::said(Layout::Native, value, fresh).unwrap().vote()
    }

    fn same(&mut self, what: &str, script: Vote, rule: Vote) -> Result<(), String> {
        self.meet(match rule {
            Vote::Stored(_) => "stored",
            Vote::Busy => "busy",
            Vote::Behind(_) => "behind",
            Vote::Ahead => "ahead",
            Vote::Gone => "gone",
            Vote::Blank => "blank",
        });
        if script == rule { Ok(()) } else { Err(format!("{what}: the script says {script:?}, the rule {rule:?}")) }
    }

    async fn claim(&mut self) -> Result<(), String> {
        let (name, id, ttl, anew) = (self.name(), self.id(), self.ttl(), self.random.random());
        let token = self.token(&name);
        let request = request(id, ttl);
        let mine = Mine {
            token,
            highest: token,
            attempt: 0,
            client: "inbox somebody a label with spaces".into(),
            touched: 0,
            waits: false,
            until: Moment(0),
        };
        let proposal = Proposal { name: &name, request: &request, mine: &mine, anew, listed: false, waits: None };
        let value = self.ask(wire::claim(Layout::Native, &proposal)).await;
        let rule = self.rule.claim(&name.to_string(), id, token, ttl, anew, self.now);
        self.log.push(format!("claim {name} {id} {token:?} {ttl:?} anew {anew}: {rule:?}"));
        self.same("claim", self.vote(&value, token), rule)
    }

    async fn renew(&mut self) -> Result<(), String> {
        let (name, id, ttl) = (self.name(), self.id(), self.ttl());
        let token = self.random.random::<bool>().then(|| self.token(&name));
        let mine = token.map(|token| Mine {
            token,
            highest: token,
            attempt: 0,
            client: "inbox somebody a label".into(),
            touched: 0,
            waits: false,
            until: Moment(0),
        });
        let restore = self.random.random();
        let renewal = RenewRequest { name: name.clone(), id, owner: Owner::random(), ttl, number: None };
        let value = self.ask(wire::renew(&[(renewal, mine)], restore)).await;
        let rule = self.rule.renew(&name.to_string(), id, token, ttl, restore, self.now);
        self.log.push(format!("renew {name} {id} {token:?} {ttl:?} restore {restore}: {rule:?}"));
        self.same("renewal", self.vote(&value, Token(0)), rule)
    }

    async fn release(&mut self) -> Result<(), String> {
        let (name, id) = (self.name(), self.id());
        let token = self.random.random::<bool>().then(|| self.token(&name));
        let ending = Ending { name: name.clone(), id, token, number: None, place: InLine::None };
        let value = self.ask(wire::release(Layout::Native, &ending)).await;
        let rule = self.rule.release(&name.to_string(), id, token, self.now);
        self.log.push(format!("release {name} {id} {token:?}: {rule}"));
        self.meet(if rule { "released" } else { "not found" });
        let script = number(&value) == Some(1);
        if script == rule { Ok(()) } else { Err(format!("release: the script says {value:?}, the rule {rule}")) }
    }

    /// A claim ends by itself.
    async fn expire(&mut self) {
        let name = self.name();
        self.log.push(format!("expire {name}"));
        self.command(&["DEL", &format!("{}{name}{}", wire::KEY_PREFIX, '}')]).await;
        self.rule.held.remove(name.as_str());
    }

    /// Time passes, as far as last tokens go.
    async fn forget(&mut self) {
        if !self.rule.member {
            return;
        }
        self.log.push("forget".to_owned());
        let since = SystemClock.wall_micros() - 31_000_000;
        self.command(&["HSET", BALLOT_KEYS[0], "since", &since.to_string()]).await;
        self.rule.forget_oldest();
        self.meet("forgotten");
    }

    async fn wipe(&mut self) {
        self.log.push("wipe".to_owned());
        self.command(&["FLUSHALL"]).await;
        self.rule = Rule::default();
    }

    /// Says hello, and sometimes lets the node in, or tries to with the wrong name.
    async fn greet(&mut self) -> Result<(), String> {
        let nonce = self.random.random();
        let value = self.ask(wire::hello(nonce)).await;
        let (script, rule) = (wire::greeting(&value).unwrap().hello, self.rule.hello(nonce));
        if script != rule {
            return Err(format!("hello: the script says {script:?}, the rule {rule:?}"));
        }
        let Some(blank) = rule.blank else { return Ok(()) };
        let (named, floor) = match self.random.random_range(0..4) {
            // From the past, and from so far ahead that only the very next token may follow.
            0 => (
                blank,
                Some(Token(
                    self.now
                        .0
                        .saturating_add_signed([-1_000_000, 20_000_000][usize::from(self.random.random::<bool>())]),
                )),
            ),
            1 => (blank, None),
            2 => (blank ^ 1, None),
            _ => return Ok(()),
        };
        let founders = [blank, self.random.random()];
        self.ask(wire::admit(named, floor, 7, 5, &founders)).await;
        self.rule.admit(named, floor.unwrap_or(Token(self.now.0)), founders.into());
        self.log.push(format!("admit {named} {floor:?}"));
        self.meet(if self.rule.member { "admitted" } else { "not admitted" });
        Ok(())
    }

    async fn compare_state(&mut self) -> Result<(), String> {
        let shows = self.names.iter().map(|name| wire::show(Layout::Native, name));
        let shows =
            shows.flat_map(|work| if let Work::Ops(ops) = work { ops } else { smallvec::smallvec![] }).collect();
        let reply = self.node.call_and_keep(Work::Ops(shows), false).await.unwrap();
        self.now = reply.now;
        let own = self.command(&["HGET", BALLOT_KEYS[0], "young"]).await;
        let young = if text(&own) == Some("b") { 2 } else { 1 };
        let keys: Vec<String> = self.names.iter().map(|name| format!("{}{name}{}", wire::KEY_PREFIX, '}')).collect();
        let ask = |hash: usize| ["HMGET", BALLOT_KEYS[hash]].into_iter().chain(keys.iter().map(String::as_str));
        let (of_late, before) = (
            self.command(&ask(young).collect::<Vec<_>>()).await,
            self.command(&ask(3 - young).collect::<Vec<_>>()).await,
        );
        for (index, name) in self.names.iter().enumerate() {
            let script = wire::shown(&reply.values[index]).unwrap().holder;
            let script = script.map(|held| ((held.id, held.token, held.number), held.expires_in.as_secs()));
            let rule = self.rule.held.get(name.as_str());
            let rule = rule.map(|held| ((held.id, held.token, held.token.0), held.expires.since(self.now).as_secs()));
            let same = match (&script, &rule) {
                (Some((script, left)), Some((rule, wanted))) => script == rule && left.abs_diff(*wanted) <= 3,
                (None, None) => true,
                _ => false,
            };
            if !same {
                return Err(format!("{name}: the script has {script:?}, the rule {rule:?}"));
            }
            let at = |values: &Value| {
                let Value::Array(items) = values else { return None };
                let (token, id) = text(&items[index])?.split_once(' ').unwrap_or((text(&items[index])?, ""));
                Some((token.parse::<u64>().ok()?, id.parse::<ClaimId>().ok()))
            };
            let script = at(&of_late).or(at(&before));
            let last = self.rule.last.get(name.as_str()).or_else(|| self.rule.old.get(name.as_str()));
            let rule = last.map(|token| (token.0, self.rule.claimant.get(name.as_str()).copied()));
            if script != rule {
                return Err(format!("{name}: the script has stored {script:?}, the rule {rule:?}"));
            }
        }
        Ok(())
    }
}

/// An exclusive claim of somebody who does not wait.
fn request(id: ClaimId, ttl: Duration) -> ClaimRequest {
    ClaimRequest {
        id,
        owner: Owner::new("somebody").unwrap(),
        label: "a label with spaces".into(),
        shape: Shape::Exclusive,
        ttl,
        queue: false,
        block: 1,
        strict: false,
        inbox: "".into(),
        within: Vec::new(),
        reenter: None,
        solo: false,
        attempt: 0,
        presumed: Duration::ZERO,
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_follows_the_rule() {
    let server = Redis::start();
    let settings = Arc::new(Settings::parse(server.url()).unwrap());
    let address = settings.addresses[0].clone();
    let clock = Arc::new(SystemClock);
    let runtime = tokio::runtime::Handle::current();
    let node = Node::new(Place::at(&settings, address), Dialect::Ballots, Arc::default(), clock, runtime);
    let seed = variable("TENURE_SEED");
    let histories = if seed.is_some() { 1 } else { variable("TENURE_HISTORIES").unwrap_or(HISTORIES) };
    let mut met: BTreeMap<&'static str, u64> = BTreeMap::new();
    for _ in 0..histories {
        let seed = seed.unwrap_or_else(rand::random);
        let mut check = Check {
            node: node.clone(),
            rule: Rule::default(),
            random: StdRng::seed_from_u64(seed),
            names: ["a", "b/c", "{d} e"].iter().map(|name| Name::new(*name).unwrap()).collect(),
            now: Moment(SystemClock.wall_micros()),
            met: BTreeMap::new(),
            log: Vec::new(),
        };
        check.wipe().await;
        for _ in 0..OPS {
            if let Err(problem) = check.step().await {
                panic!("{}\n{problem}\nreplay with TENURE_SEED={seed}", check.log.join("\n"));
            }
        }
        check.met.into_iter().for_each(|(what, count)| *met.entry(what).or_default() += count);
    }
    eprintln!("{met:?}");
    let all = ["stored", "busy", "behind", "ahead", "gone", "blank", "released", "not found", "forgotten", "admitted"];
    let missing: Vec<_> = all.iter().filter(|what| met.get(*what).is_none_or(|count| *count < 10)).collect();
    assert!(histories < HISTORIES || missing.is_empty(), "too rarely met: {missing:?} of {met:?}");
}
