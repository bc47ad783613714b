//! The ensemble.

use tenure_testkit::servers::{Zookeeper, wait_until};

#[test]
fn one_of_three_leads_and_another_takes_over() {
    let servers = Zookeeper::start();
    assert_eq!(servers.members(), 3);
    let leader = servers.leader().unwrap();
    let followers = (0..3).filter(|member| servers.mode(*member).as_deref() == Some("follower")).count();
    assert_eq!(followers, 2);
    servers.kill(leader);
    assert_eq!(servers.mode(leader), None);
    wait_until("another leads", || servers.leader().is_some_and(|now| now != leader));
    servers.restart(leader);
    assert_eq!(servers.mode(leader).as_deref(), Some("follower"));
}

#[test]
fn one_that_stands_still_answers_nothing_until_it_goes_on() {
    let servers = Zookeeper::builder().members(1).config("tickTime", "200").start();
    assert_eq!(servers.mode(0).as_deref(), Some("standalone"));
    assert!(servers.word(0, "conf").unwrap().contains("tickTime=200"));
    servers.pause(0);
    assert!(servers.word(0, "ruok").is_err());
    servers.resume(0);
    assert_eq!(servers.word(0, "ruok").unwrap(), "imok");
}
