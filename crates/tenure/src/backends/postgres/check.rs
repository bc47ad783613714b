//! What no test could wait for from outside.

use futures_util::future::{FutureExt as _, join_all};
use tenure_testkit::servers::{Postgres, wait_until};

use super::link::Link;
use super::preparing::Preparing;
use super::url::Settings;
use crate::error::ErrorKind;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_given_up_and_never_answer_are_no_more_than_may_be() {
    const TRIED: usize = 40;
    let server = Postgres::start();
    let settings = Settings::parse(server.url()).unwrap();
    let preparing = Preparing::of(1).into();
    let (mut refused, mut kept) = (0, Vec::new());
    for _ in 0..TRIED {
        match Link::open(&settings, &preparing).await {
            Ok(link) => {
                assert!(link.query("SELECT pg_sleep(600)", &[]).now_or_never().is_none());
                // Nobody has it any more; the server goes on.
                drop(link);
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "all were let in");
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    wait_until("the others are asked", || server.psql(asleep) == (TRIED - refused).to_string());
    // What is answered makes room.
    server.psql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'");
    while kept.len() < TRIED - refused {
        kept.extend(Link::open(&settings, &preparing).await);
        tokio::task::yield_now().await;
    }
    let answers = join_all(kept.iter().map(|link| link.query("SELECT 1", &[]))).await;
    assert!(answers.iter().all(Result::is_ok));
    assert!(Link::open(&settings, &preparing).await.is_err(), "one more than may be");
}
