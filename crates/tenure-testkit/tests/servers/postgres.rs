//! PostgreSQL, its standby, and a pooler.

use tenure_testkit::servers::{PgBouncer, Postgres, wait_until};

#[test]
fn it_answers_restarts_and_keeps_what_it_has() {
    let server = Postgres::start();
    server.psql("CREATE TABLE kept (value int); INSERT INTO kept VALUES (7)");
    server.restart();
    assert_eq!(server.psql("SELECT value FROM kept"), "7");
}

#[test]
fn a_standby_follows_and_is_promoted() {
    let primary = Postgres::start();
    let standby = primary.standby();
    primary.psql("CREATE TABLE kept (value int); INSERT INTO kept VALUES (7)");
    assert_eq!(standby.psql("SHOW transaction_read_only"), "on");
    primary.kill();
    standby.promote();
    assert_eq!(standby.psql("INSERT INTO kept VALUES (8); SELECT sum(value) FROM kept"), "15");
}

#[test]
fn its_clock_is_set_while_it_runs() {
    let server = Postgres::builder().shifted_clock().start();
    let ahead = || -> f64 {
        let theirs: f64 = server.psql("SELECT extract(epoch FROM clock_timestamp())").parse().unwrap();
        theirs - std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64()
    };
    for shift in [0, 3_600, -3_600] {
        server.shift_clock(shift);
        assert!((ahead() - shift as f64).abs() < 60.0, "{} for {shift}", ahead());
    }
}

#[test]
fn a_pooler_passes_statements_on() {
    let server = Postgres::start();
    let pooler = PgBouncer::before(&server, 1);
    assert!(pooler.url().ends_with(&format!(":{}/postgres", pooler.port())));
    wait_until("it says so", || pooler.log().contains("listening on 127.0.0.1"));
}
