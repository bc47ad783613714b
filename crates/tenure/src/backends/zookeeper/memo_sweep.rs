//! Removing memos that have ended. Nothing else depends on it: they are read as none.
//!
//! A listing tells no ends, so some nodes are looked into at random: two for each memo that is written for a while.
//! Of those that are there, less than half or so have ended then.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::desk::Desk;
use super::look::Fresh;
use super::names::parent;
use super::session::{Answered, Session};
use crate::clock::Moment;

/// How many nodes are looked into for each write, and at most at a time.
const EACH: usize = 2;
const LOOKS_MAX: usize = 16;
/// How often at most.
const PAUSE: Duration = Duration::from_secs(1);

/// When memos were looked into, and how many are to be.
#[derive(Debug, Default)]
pub(super) struct Sweeps(Mutex<Due>);

#[derive(Debug, Default)]
struct Due {
    looks: usize,
    under_way: bool,
    begun: Option<Moment>,
}

impl Sweeps {
    fn due(&self) -> MutexGuard<'_, Due> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A memo was written: how many nodes are to be looked into now, if any.
    fn begin(&self, now: Moment) -> Option<usize> {
        let mut due = self.due();
        due.looks = (due.looks + EACH).min(LOOKS_MAX);
        if due.under_way || due.begun.is_some_and(|begun| begun + PAUSE > now) {
            return None;
        }
        (due.under_way, due.begun) = (true, Some(now));
        Some(std::mem::take(&mut due.looks))
    }

    fn end(&self) {
        self.due().under_way = false;
    }
}

impl Desk {
    /// A memo was written that ends: looks for some that have ended, in the background and not too often.
    pub(super) fn sweep_memos_later(self: &Arc<Self>) {
        let Some(looks) = self.memo_sweeps.begin(self.clock.now()) else { return };
        let desk = self.clone();
        self.runtime.spawn(async move {
            if let Err(error) = desk.sweep_memos(looks).await {
                tracing::debug!(%error, "memos that have ended could not be removed");
            }
            desk.memo_sweeps.end();
        });
    }

    /// Looks into so many memos of one bucket, and removes those that have ended; how many.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what is left is found another time.
    async fn sweep_memos(self: &Arc<Self>, looks: usize) -> Answered<usize> {
        let Ok(session) = self.usual().await else { return Ok(0) };
        let memos = self.paths.memos();
        let buckets = self.children(&session, &memos, Fresh::No).await?;
        let Some(bucket) = some_of(buckets, 1).pop().map(|bucket| format!("{memos}/{bucket}")) else { return Ok(0) };
        let nodes = self.children(&session, &bucket, Fresh::No).await?;
        let mut removed = 0;
        for node in some_of(nodes, looks) {
            removed += usize::from(self.remove_if_over(&session, &format!("{bucket}/{node}")).await?);
        }
        Ok(removed)
    }

    async fn remove_if_over(&self, session: &Session, path: &str) -> Answered<bool> {
        // What cannot be understood is left to whoever wrote it.
        let Ok(seen) = self.look_at_memo(session, path).await? else { return Ok(false) };
        let (Some((memo, version)), Some(bucket)) = (seen.memo, seen.bucket) else { return Ok(false) };
        let wall = self.store_wall(session).await?;
        if !memo.is_over(wall) {
            return Ok(false);
        }
        self.remove_memo(session, path, (version, bucket)).await
    }

    /// Removes a memo, if it and its bucket are as they were seen. All who remove one change the bucket: so nobody
    /// else has, and it is the very node that was seen.
    async fn remove_memo(&self, session: &Session, path: &str, (version, bucket): (i32, i32)) -> Answered<bool> {
        let mut multi = session.client.new_multi_writer();
        multi.add_set_data(parent(path), b"", Some(bucket))?;
        multi.add_delete(path, Some(version))?;
        self.commit(session, multi).await
    }
}

/// So many of these at most, at random.
fn some_of(mut all: Vec<String>, most: usize) -> Vec<String> {
    let most = most.min(all.len());
    for place in 0..most {
        let other = rand::random_range(place..all.len());
        all.swap(place, other);
    }
    all.truncate(most);
    all
}

#[cfg(test)]
mod tests {
    use super::super::check::{client, name, request, stands};
    use super::super::memo;
    use super::*;
    use crate::backend::{ClaimRequest, MemoKind, MemoWrite, MemoWritten};

    fn write(holds: &ClaimRequest, token: crate::Token, keep: Option<Duration>) -> MemoWrite {
        MemoWrite {
            id: holds.id,
            owner: holds.owner.clone(),
            number: None,
            token,
            after: 0,
            write: rand::random(),
            kind: MemoKind::User,
            keep,
            bytes: b"x".as_slice().into(),
        }
    }

    #[test]
    fn sweeps_follow_writes_and_are_rare() {
        let sweeps = Sweeps::default();
        let now = Moment(5_000_000);
        assert_eq!(sweeps.begin(now), Some(EACH));
        assert_eq!(sweeps.begin(now + PAUSE), None, "one is under way");
        sweeps.end();
        assert_eq!(sweeps.begin(now + PAUSE / 2), None, "there was one just now");
        assert_eq!(sweeps.begin(now + PAUSE), Some(EACH * 3), "for all that were written since");
        assert_eq!(some_of(vec!["a".into(), "b".into()], 9).len(), 2);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn memos_that_have_ended_are_removed_and_others_stay() {
        let desk = client("/memo-sweep").await;
        let holds = request(Duration::from_secs(20));
        let token = stands(&desk, &holds).await.state.unwrap().token;
        let session = desk.usual().await.unwrap();
        let path = desk.paths.memo(&name());
        let keep = Duration::from_millis(1);
        let written = memo::write_memo(desk.clone(), name(), write(&holds, token, Some(keep))).await.unwrap();
        let MemoWritten::Done { version } = written else { panic!("{written:?}") };
        // Its time is over once another write of the servers has a later one.
        let removed = async || desk.sweep_memos(LOOKS_MAX).await.unwrap();
        let gone = tokio::time::timeout(Duration::from_secs(60), async {
            while session.client.check_stat(&path).await.unwrap().is_some() {
                removed().await;
            }
        });
        gone.await.unwrap();
        let written = memo::write_memo(desk.clone(), name(), write(&holds, token, None)).await.unwrap();
        assert!(matches!(written, MemoWritten::Done { version: next } if next > version), "{written:?}");
        for _ in 0..4 {
            assert_eq!(removed().await, 0);
        }
        assert!(memo::memo(desk.clone(), name()).await.unwrap().is_some(), "what is kept for ever stays");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_memo_that_took_the_place_of_the_one_that_was_seen_is_neither_removed_nor_written_over() {
        let desk = client("/memo-again").await;
        let holds = request(Duration::from_secs(20));
        let token = stands(&desk, &holds).await.state.unwrap().token;
        let session = desk.usual().await.unwrap();
        let path = desk.paths.memo(&name());
        let put = async || memo::write_memo(desk.clone(), name(), write(&holds, token, None)).await.unwrap();
        let seen = async || {
            let seen = desk.look_at_memo(&session, &path).await.unwrap().unwrap();
            (seen.memo.unwrap().1, seen.bucket.unwrap())
        };
        put().await;
        let first = seen().await;
        assert!(desk.remove_memo(&session, &path, first).await.unwrap());
        put().await;
        let second = seen().await;
        assert_eq!(first.0, second.0, "its counter is the same");
        assert!(!desk.remove_memo(&session, &path, first).await.unwrap(), "by who came late");
        let own = desk.find(&session, &name(), holds.id, Fresh::Yes).await.unwrap().remove(0);
        let own = (format!("{}/{}", desk.paths.of(&name()), own.0.name), own.1.version);
        assert_eq!(desk.put_memo(&session, &name(), (&own, Some(first)), b"late").await.unwrap(), None);
        assert!(desk.put_memo(&session, &name(), (&own, Some(second)), b"{}\n").await.unwrap().is_some());
    }
}
