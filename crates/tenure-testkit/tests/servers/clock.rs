//! Clocks go wrong as told, and only where told.

use tenure_testkit::servers::{Redis, wait_until};

#[test]
fn a_clock_steps_both_ways_and_stays_off_across_a_restart() {
    let (shifted, other) = (Redis::builder().shifted_clock().start(), Redis::builder().shifted_clock().start());
    shifted.cli(&["set", "lease", "x", "ex", "30"]);
    shifted.shift_clock(-60);
    let left: i64 = shifted.cli(&["ttl", "lease"]).parse().unwrap();
    assert!((85..=91).contains(&left), "a step back prolongs a lease: {left}");
    shifted.shift_clock(60);
    wait_until("a step forward ends it", || shifted.cli(&["exists", "lease"]) == "0");

    shifted.kill();
    shifted.shift_clock(-3600);
    shifted.restart();
    assert!((-3602..=-3598).contains(&shifted.clock_ahead()));
    assert!((-2..=2).contains(&other.clock_ahead()), "each server has a clock of its own");
    shifted.shift_clock(0);
}

#[test]
#[should_panic = "a server with a shifted clock"]
fn a_server_with_the_clock_of_the_machine_cannot_be_shifted() {
    Redis::start().shift_clock(1);
}
