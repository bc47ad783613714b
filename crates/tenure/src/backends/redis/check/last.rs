//! Blocks of tokens do not push the server's last token ahead of its clock: each is remembered with its name.

use redis::Value;
use tenure_testkit::servers::Redis;

use super::super::node::LAST_KEY;
use super::super::op::Op;
use super::super::wire;
use super::script;
use crate::backend::{ClaimRequest, Shape};
use crate::machine::Grant;
use crate::name::Name;
use crate::owner::{ClaimId, Owner};

const NAMES: u64 = 64;
const BLOCKS: usize = 64;
const BLOCK: u32 = 32;

struct Server {
    connection: redis::Connection,
    script: String,
}

impl Server {
    /// What one call answers: the server's time, and a value for each operation.
    fn call(&mut self, ops: &[Op]) -> (u64, Vec<Value>) {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.script).arg(ops.len() + 1).arg(LAST_KEY);
        for op in ops {
            command.arg(op.key());
        }
        command.arg(1).arg(0);
        for op in ops {
            op.write_args(&mut command);
        }
        let mut values: Vec<Value> = command.query(&mut self.connection).unwrap();
        let answers = values.split_off(1);
        (wire::number(&values[0]).unwrap(), answers)
    }

    fn last(&mut self) -> u64 {
        redis::cmd("GET").arg(LAST_KEY).query(&mut self.connection).unwrap()
    }
}

fn request(id: u64) -> ClaimRequest {
    ClaimRequest {
        id: ClaimId(id),
        owner: Owner::new(format!("owner{id}")).unwrap(),
        label: "".into(),
        shape: Shape::Exclusive,
        ttl: std::time::Duration::from_secs(60),
        queue: true,
        block: BLOCK,
        strict: false,
        inbox: "".into(),
        within: Vec::new(),
        reenter: None,
        solo: true,
        attempt: 0,
        presumed: std::time::Duration::ZERO,
    }
}

fn granted(value: &Value) -> Grant {
    match wire::renewed(value).unwrap() {
        crate::backend::Renewed::Stands(standing) => standing.state.unwrap(),
        other => panic!("not granted: {other:?}"),
    }
}

/// Gives blocks in each way there is; how far the server's last token is ahead of its clock then, in microseconds.
fn lead(script: String) -> [u64; 3] {
    let server = Redis::start();
    let connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let mut server = Server { connection, script };
    let names: Vec<Name> = (0..NAMES).map(|name| Name::new(format!("x/{name}")).unwrap()).collect();
    let claims = |of: u64| names.iter().zip(of..).map(|(name, id)| Op::claim(name, &request(id), "nobody"));

    // Of a free name.
    let (now, answers) = server.call(&claims(1_000).collect::<Vec<_>>());
    let free = server.last().saturating_sub(now);
    let first: Vec<Grant> = answers.iter().map(granted).collect();
    assert!(first.iter().all(|grant| grant.block_end.0 - grant.token.0 == u64::from(BLOCK) - 1), "{first:?}");

    // The next one of a holder that nobody waits behind.
    let (mut grant, mut now) = (first[0], now);
    for _ in 0..BLOCKS {
        let op = Op::next_block(&names[0], ClaimId(1_000), grant.block_end, &request(5_000), "nobody");
        let (at, answers) = server.call(&[op]);
        let next = granted(&answers[0]);
        assert!(next.token > grant.block_end, "{next:?} after {grant:?}");
        (grant, now) = (next, at);
    }
    let next = server.last().saturating_sub(now);

    // Of those who waited.
    server.call(&claims(2_000).collect::<Vec<_>>());
    let releases = names.iter().zip(1_000..).map(|(name, id)| Op::release(name, ClaimId(id), None, false));
    let (now, _) = server.call(&releases.collect::<Vec<_>>());
    let waited = server.last().saturating_sub(now);
    let renewals = names.iter().zip(2_000..).map(|(name, id)| Op::renew(name, ClaimId(id), request(id).ttl, None));
    let (_, answers) = server.call(&renewals.collect::<Vec<_>>());
    let after: Vec<Grant> = answers.iter().map(granted).collect();
    assert!(after.iter().zip(&first).all(|(after, before)| after.token > before.block_end), "{after:?}");
    [free, next, waited]
}

#[test]
fn blocks_do_not_push_the_servers_last_token_ahead_of_its_clock() {
    assert_eq!(lead(script()), [0, 0, 0]);
}

#[test]
fn blocks_that_push_it_are_seen() {
    let words = "(not with_name or block_end > now + ttl * 1000)";
    assert_eq!(script().matches(words).count(), 1, "the script has changed");
    let pushed = lead(script().replace(words, "true"));
    assert!(pushed.iter().all(|lead| *lead > 0), "{pushed:?}");
}
