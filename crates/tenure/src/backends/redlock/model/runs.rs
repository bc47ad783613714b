//! What is explored.

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model as _};

use super::world::{Budget, Step, World};
use super::{BASE, Config, Mutation, NO_FAULTS, Rule, Writes};
use crate::clock::{Clock as _, Moment, SystemClock};

/// One proposal of one token: enough for most of what may go wrong.
const ONE: Config = Config { tokens: &[1], rounds: 1, ..BASE };

/// One node loses its data and is admitted again.
const LOSS: Config =
    Config { admins: 1, until: 2, budget: Budget { losses: 1, passes: 2, ..NO_FAULTS }, prompt_hellos: true, ..ONE };

/// No node has data at first; one that has served loses it.
const FRESH: Config = Config { fresh: true, until: 0, prompt_hellos: false, ..LOSS };

/// The first claim's id tries again.
const SAME_ID: Config = Config { ids: &[1, 1, 2], rounds: 2, releases: 1, ttl: 2, until: 0, ..ONE };

/// More than can be exhausted.
const EVERYTHING: Config = Config {
    ids: &[1, 2, 3, 1],
    tokens: &[1, 2, 3, 30_000_000],
    rounds: 3,
    ttl: 2,
    until: 12,
    releases: 4,
    writes: Writes::Delayed,
    admins: 2,
    budget: Budget {
        duplicates: 4,
        lost_replies: 4,
        clock_steps: 2,
        losses: 2,
        forgets: 4,
        again: 1,
        renewals: 2,
        passes: 8,
    },
    ..BASE
};

/// Whether there is time.
fn deep() -> bool {
    std::env::var_os("TENURE_MODEL_DEEP").is_some()
}

/// Explores everything that may happen; no property may fail, and all of these must be reached.
fn holds(name: &str, config: Config, reached: &[&'static str]) {
    let begun = SystemClock.now();
    let checker = config.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    report(name, &checker, begun);
    assert_sound(name, &checker);
    for property in reached {
        assert!(checker.discovery(property).is_some(), "{name}: never reached: {property}");
    }
}

/// Walks at random, the same way each time; no property may fail, and all of these must be reached.
fn walk(name: &str, config: Config, steps_max: usize, reached: &[&'static str]) {
    let (begun, properties) = (SystemClock.now(), config.properties());
    let (mut random, mut steps, mut walks) = (Random(7), 0, 0);
    let mut met = BTreeSet::new();
    while steps < steps_max {
        walks += 1;
        let (mut world, mut path) = (World::new(&config), Vec::new());
        while let Some((step, next)) = random.step(&config, &world) {
            path.push(step);
            world = next;
            for property in &properties {
                let holds = (property.condition)(&config, &world);
                let failed = property.expectation.discovery_is_failure() && !holds;
                assert!(!failed, "{name}: {} fails: {path:?}\n{world:?}", property.name);
                if holds && !property.expectation.discovery_is_failure() {
                    met.insert(property.name);
                }
            }
        }
        steps += path.len();
    }
    println!(
        "{name}: {walks} walks, {steps} steps, reached {met:?}, {:.1} s",
        SystemClock.now().since(begun).as_secs_f32()
    );
    for property in reached {
        assert!(met.contains(property), "{name}: never reached: {property}");
    }
}

/// The same numbers each time (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed >> 33) % limit as u64).unwrap()
    }

    /// Any step that makes a difference; of those that go against an attempt, fewer, so that some succeed.
    fn step(&mut self, config: &Config, world: &World) -> Option<(Step, World)> {
        let mut steps = Vec::new();
        config.actions(world, &mut steps);
        let mut draws = 0;
        while !steps.is_empty() {
            draws += 1;
            let drawn = self.below(steps.len());
            if adverse(steps[drawn]) && draws < 50 && self.below(16) != 0 {
                continue;
            }
            let step = steps.swap_remove(drawn);
            if let Some(next) = config.next_state(world, step) {
                return Some((step, next));
            }
        }
        None
    }
}

fn adverse(step: Step) -> bool {
    match step {
        Step::Deliver { keep, lose_reply, .. } => keep || lose_reply,
        Step::Renew(_) | Step::Write(_) | Step::Land(_) | Step::Pass(_) | Step::Admit(_) => false,
        _ => true,
    }
}

fn assert_sound(name: &str, checker: &impl Checker<Config>) {
    for property in checker.model().properties().iter().filter(|known| known.expectation.discovery_is_failure()) {
        if let Some(path) = checker.discovery(property.name) {
            let last = path.last_state().clone();
            panic!("{name}: {} fails: {:#?}\n{last:#?}", property.name, path.into_actions());
        }
    }
}

#[derive(Clone, Copy)]
enum Search {
    /// The shortest way, where that is short.
    Wide,
    Deep,
}

/// Explores until this property fails: it must.
fn fails(name: &str, config: Config, search: Search, property: &'static str) {
    let begun = SystemClock.now();
    let checker = config.checker().finish_when(HasDiscoveries::AllOf([property].into()));
    let found = match search {
        Search::Wide => fails_in(name, &checker.threads(2).spawn_bfs().join(), property, begun),
        Search::Deep => fails_in(name, &checker.spawn_dfs().join(), property, begun),
    };
    assert!(found, "{name}: {property} does not fail");
}

fn fails_in(name: &str, checker: &impl Checker<Config>, property: &'static str, begun: Moment) -> bool {
    report(name, checker, begun);
    let Some(path) = checker.discovery(property) else { return false };
    if std::env::var_os("TENURE_MODEL_PATHS").is_some() {
        println!("{property} fails: {:#?}", path.into_actions());
    }
    true
}

fn report(name: &str, checker: &impl Checker<Config>, begun: Moment) {
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{name}: {states} states, depth {depth}, {:.1} s", SystemClock.now().since(begun).as_secs_f32());
}

/// Redlock as published: what it is known for.
#[test]
fn classic_lets_stale_writes_through() {
    let classic = Config { rule: Rule::Classic, fenced: false, ttl: 2, until: 3, writes: Writes::Prompt, ..ONE };
    holds("classic, no fault", classic.clone(), &["granted", "granted again"]);
    let pause = Config { writes: Writes::Delayed, ..classic.clone() };
    fails("classic, pause", pause, Search::Wide, "no stale write");
    let step = Config { budget: Budget { clock_steps: 1, ..NO_FAULTS }, ..classic.clone() };
    fails("classic, clock step", step, Search::Wide, "no stale write");
    let restart = Config { budget: Budget { losses: 1, ..NO_FAULTS }, ..classic };
    fails("classic, restart without data", restart, Search::Wide, "no stale write");
}

#[test]
fn ballots_hold_on_three_nodes() {
    let twice = Config { tokens: &[1, 2], ..ONE };
    let budget = Budget { duplicates: 1, lost_replies: 1, ..NO_FAULTS };
    holds("3 nodes, messages", Config { rounds: 2, budget, ..ONE }, &["granted above", "granted again"]);
    holds("3 nodes, release", Config { releases: 1, ..BASE }, &["granted again", "given up"]);
    let budget = Budget { again: 1, ..NO_FAULTS };
    holds("3 nodes, two proposers", Config { budget, ..twice.clone() }, &["granted again"]);
    let budget = Budget { renewals: 1, ..NO_FAULTS };
    holds("3 nodes, renewal", Config { budget, ttl: 2, until: 2, ..ONE }, &["renewed"]);
    let budget = Budget { clock_steps: 1, forgets: 1, ..NO_FAULTS };
    let config = Config { budget, writes: Writes::Delayed, ..twice.clone() };
    let forgets = Budget { forgets: 2, ..NO_FAULTS };
    holds("3 nodes, forgetting", Config { budget: forgets, ..twice }, &["granted again"]);
    holds("3 nodes, clock, forgetting, writes", config, &["granted again", "write refused"]);
    holds("3 nodes, one id twice", SAME_ID, &["granted again"]);
    let config = Config { ids: &[1, 2, 3], tokens: &[1, 2], until: 0, ..ONE };
    holds("3 nodes, three claims", config, &["granted"]);
}

#[test]
fn ballots_hold_when_data_is_lost() {
    holds("3 nodes, loss", LOSS, &["granted"]);
    let budget = Budget { duplicates: 1, ..LOSS.budget };
    holds("3 nodes, new fleet", Config { budget, ..FRESH }, &["granted"]);
    let two_begin = |budget| Config { admins: 2, prompt_hellos: true, budget, ..FRESH };
    let config = Config { ids: &[1], ..two_begin(Budget { passes: 4, ..NO_FAULTS }) };
    holds("3 nodes, a new fleet that two begin", config, &["granted in a fleet that two began"]);
    if deep() {
        let config = two_begin(Budget { passes: 4, ..LOSS.budget });
        holds("3 nodes, a new fleet that two begin, loss", config, &["granted in a fleet that two began"]);
        let config = Config { tokens: &[1, 2], until: 3, ..LOSS };
        holds("3 nodes, loss, two tokens", config, &["granted after a loss"]);
        holds("3 nodes, loss, hellos", Config { rounds: 2, prompt_hellos: false, ..LOSS }, &["granted after a loss"]);
        holds(
            "3 nodes, two new fleets",
            Config { admins: 2, budget: Budget { passes: 3, ..LOSS.budget }, ..FRESH },
            &[],
        );
    }
}

#[test]
fn ballots_hold_on_five_nodes() {
    holds("5 nodes, two rounds", Config { nodes: 5, ..BASE }, &["granted above"]);
    let budget = Budget { clock_steps: 1, ..NO_FAULTS };
    holds("5 nodes, clock", Config { nodes: 5, budget, ..ONE }, &["granted"]);
    if deep() {
        holds(
            "5 nodes, three claims",
            Config { nodes: 5, ids: &[1, 2, 3], until: 0, releases: 1, ..ONE },
            &["granted"],
        );
        let config = Config { nodes: 5, rounds: 2, budget, ..BASE };
        holds("5 nodes, two rounds, clock", config, &["granted again"]);
    }
}

#[test]
fn ballots_hold_in_long_walks() {
    let steps = if deep() { 50_000_000 } else { 150_000 };
    let reached = ["granted again", "granted above", "renewed", "given up"];
    walk("3 nodes, everything", EVERYTHING, steps, &reached);
    walk("5 nodes, everything", Config { nodes: 5, ..EVERYTHING }, steps, &reached);
    let budget = Budget { losses: 1, ..EVERYTHING.budget };
    walk("3 nodes, new fleet, everything", Config { fresh: true, budget, ..EVERYTHING }, steps, &["granted again"]);
    // Where no clock steps, not even the leases overlap; one client proposes for a claim, and knows what it did.
    let budget = Budget { clock_steps: 0, again: 0, ..EVERYTHING.budget };
    walk("5 nodes, right clocks", Config { nodes: 5, budget, ..EVERYTHING }, steps, &["granted again"]);
}

/// Each part of the rule of a node is needed.
#[test]
fn a_spoilt_node_is_caught() {
    use Mutation as M;
    let spoilt = |mutation: M, config: Config, search, property| {
        fails(&format!("{mutation:?}"), Config { mutation: Some(mutation), ..config }, search, property);
    };
    let budget = Budget { forgets: 2, ..NO_FAULTS };
    spoilt(M::ForgetAtRelease, Config { releases: 2, rounds: 1, until: 0, ..BASE }, Search::Wide, "token order");
    spoilt(M::ForgetAtExpiry, BASE, Search::Wide, "token order");
    spoilt(M::EqualTokens, BASE, Search::Wide, "tokens differ");
    spoilt(M::ForgetWithoutFloor, Config { budget, ..BASE }, Search::Wide, "token order");
    spoilt(M::ReleaseWithoutRaise, Config { releases: 2, ..BASE }, Search::Wide, "no orphan");
    spoilt(M::ReleaseAnyToken, SAME_ID, Search::Deep, "one believes");
    spoilt(M::BlankVotes, LOSS, Search::Wide, "token order");
    spoilt(M::FloorZero, LOSS, Search::Deep, "token order");
    let budget = Budget { duplicates: 1, ..LOSS.budget };
    spoilt(M::AdmitAnyBlank, Config { prompt_hellos: true, budget, ..FRESH }, Search::Deep, "token order");
}

/// Each part of the rule of a client is needed.
#[test]
fn a_spoilt_client_is_caught() {
    use Mutation as M;
    let spoilt = |mutation: M, config: Config, search, property| {
        fails(&format!("{mutation:?}"), Config { mutation: Some(mutation), ..config }, search, property);
    };
    let budget = Budget { again: 1, ..NO_FAULTS };
    spoilt(M::MixedVotes, Config { budget, rounds: 1, ..BASE }, Search::Wide, "token order");
    spoilt(M::RetryPlain, SAME_ID, Search::Deep, "one believes");
    spoilt(M::LongRounds, Config { ttl: 4, until: 3, ..LOSS }, Search::Deep, "token order");
    let budget = Budget { losses: 1, passes: 1, ..NO_FAULTS };
    let config = Config { ttl: 2, budget, prompt_hellos: false, ..LOSS };
    spoilt(M::BlankUntilDecided, config, Search::Deep, "token order");
    spoilt(M::OnePass, Config { admins: 2, ..FRESH }, Search::Deep, "token order");
    let budget = Budget { losses: 2, passes: 2, ..NO_FAULTS };
    spoilt(M::AnyFounder, Config { until: 0, budget, ..LOSS }, Search::Wide, "tokens differ");
    if deep() {
        let budget = Budget { duplicates: 2, ..LOSS.budget };
        spoilt(M::HelloTwice, Config { budget, ..FRESH }, Search::Deep, "token order");
    }
}
