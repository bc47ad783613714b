use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::clock::Moment;

const KEEP: Duration = Duration::from_secs(60);

fn name() -> Name {
    Name::new("x").unwrap()
}

fn value() -> Value {
    Value { bytes: [7].into(), age: Duration::ZERO, at: Moment(0) }
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// The seat of a caller that leads at once.
fn lead(flights: &Flights) -> Seat<'_, u8> {
    let name = name();
    match poll(pin!(flights.join::<u8>(&name, KEEP))) {
        Poll::Ready(Part::Lead(seat)) => seat,
        Poll::Ready(Part::Told(_)) => panic!("it was told"),
        Poll::Pending => panic!("it waits"),
    }
}

#[test]
fn all_who_wait_are_told_and_whoever_comes_later_is_not() {
    let (flights, name) = (Flights::default(), name());
    let seat = lead(&flights);
    let (mut a, mut b) = (pin!(flights.join::<u8>(&name, KEEP)), pin!(flights.join::<u8>(&name, KEEP)));
    assert!(poll(a.as_mut()).is_pending() && poll(b.as_mut()).is_pending());
    seat.land(Err(CachedError::Compute(Arc::new(3))));
    let later = lead(&flights);
    for told in [poll(a), poll(b)] {
        assert!(matches!(told, Poll::Ready(Part::Told(Err(CachedError::Compute(error)))) if *error == 3));
    }
    assert_eq!(flights.len(), 1, "those of the first flight leave the second alone");
    drop(later);
    assert_eq!(flights.len(), 0);
}

#[test]
fn one_who_waits_leads_if_the_leader_is_gone_whoever_is_polled_first() {
    let (flights, name) = (Flights::default(), name());
    let seat = lead(&flights);
    let (mut parked, mut b) = (Box::pin(flights.join::<u8>(&name, KEEP)), pin!(flights.join::<u8>(&name, KEEP)));
    assert!(poll(parked.as_mut()).is_pending() && poll(b.as_mut()).is_pending());
    drop(seat);
    let Poll::Ready(Part::Lead(seat)) = poll(b) else { panic!("nobody leads") };
    assert!(poll(parked.as_mut()).is_pending(), "one at a time");
    seat.land(Ok(value()));
    assert!(matches!(poll(parked.as_mut()), Poll::Ready(Part::Told(Ok(_)))));
    drop(parked);
    assert_eq!(flights.len(), 0);
}

#[test]
fn nothing_is_left_of_callers_that_are_dropped_in_any_order() {
    for leader_first in [false, true] {
        let (flights, name) = (Flights::default(), name());
        let seat = lead(&flights);
        let mut waits = Box::pin(flights.join::<u8>(&name, KEEP));
        assert!(poll(waits.as_mut()).is_pending());
        if leader_first {
            drop(seat);
            drop(waits);
        } else {
            drop(waits);
            drop(seat);
        }
        assert_eq!(flights.len(), 0);
        drop(lead(&flights));
    }
}

#[test]
fn callers_with_other_errors_keeps_or_names_fly_apart() {
    let (flights, own) = (Flights::default(), name());
    let _seat = lead(&flights);
    assert!(matches!(poll(pin!(flights.join::<String>(&own, KEEP))), Poll::Ready(Part::Lead(_))));
    assert!(matches!(poll(pin!(flights.join::<u8>(&own, KEEP * 2))), Poll::Ready(Part::Lead(_))));
    let other = Name::new("y").unwrap();
    assert!(matches!(poll(pin!(flights.join::<u8>(&other, KEEP))), Poll::Ready(Part::Lead(_))));
    assert_eq!(flights.len(), 1);
}
