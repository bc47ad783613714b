//! Memos: one znode for each name that has one, in one of 256 buckets below the chroot.
//!
//! Who holds follows from the order of the nodes, and stays so while the claim's node is there: nothing is ever put
//! before it. So one look shows that the claim holds, and the transaction that writes checks what was seen of its
//! node and of the memo's. A memo's version is the zxid that wrote it, which never comes again. The node's own
//! counter begins anew should the node be removed and made again: so what removes one changes its bucket, and a write
//! checks that too.

use std::sync::Arc;

use futures_util::future::join3;
use zookeeper_client::{CreateMode, Error as Refused, MultiWriteResult};

use super::desk::Desk;
use super::error::{of_request, restless};
use super::look::Fresh;
use super::names::{Node, parent, tag_of};
use super::record::{Known, claim_of};
use super::session::{Answered, Kind, Session};
use crate::backend::{Memo, MemoWrite, MemoWritten};
use crate::backends::kit::memo::{answer_without_writing, decode, encode};
use crate::error::{Certainty, Result};
use crate::machine::{MemoRecord, Queue};
use crate::name::Name;

/// How often it is begun anew because the claim or the memo changed meanwhile.
const TRIES_MAX: usize = 16;

/// A memo's node as it was read, and its bucket.
pub(super) struct Seen {
    /// With the version of the node's data.
    pub(super) memo: Option<(MemoRecord, i32)>,
    /// How often something was removed from it; none if it is not there. Read before the memo.
    pub(super) bucket: Option<i32>,
}

/// The queue as far as the writer's node, and that node.
struct Front {
    queue: Queue,
    /// Its path and version; none if the writer has no node.
    own: Option<(String, i32)>,
}

/// Writes a memo.
///
/// # Cancel safety
///
/// Cancelling leaves the outcome unknown: repeat the same write, and the answer is the same.
pub(super) async fn write_memo(desk: Arc<Desk>, name: Name, write: MemoWrite) -> Result<MemoWritten> {
    // Where the claim lives: requests of one session are done in the order they were sent in.
    let session = match desk.table.get(write.id).filter(|entry| !entry.session.has_ended()) {
        Some(entry) => entry.session,
        None => desk.usual().await?,
    };
    // Looking changes nothing.
    let look_failed = |error: Refused| of_request(error).with_certainty(Certainty::NotApplied);
    let value = encode(&write, None);
    for _ in 0..TRIES_MAX {
        let seen = desk.look_at_memo(&session, &desk.paths.memo(&name)).await.map_err(look_failed)?;
        let seen = seen.map_err(|error| error.about(&name))?;
        let Some(front) = desk.front_of(&session, &name, &write).await.map_err(look_failed)? else { continue };
        let wall = desk.store_wall(&session).await.map_err(look_failed)?;
        let present = seen.memo.as_ref().map(|(memo, _)| memo);
        if let Some(answer) = answer_without_writing(&front.queue, present, &write, desk.wall(), wall) {
            return Ok(answer);
        }
        let Some(own) = front.own else { return Ok(MemoWritten::NotHolder) };
        let Some(bucket) = seen.bucket else {
            session.make_root(parent(&desk.paths.memo(&name))).await.map_err(look_failed)?;
            continue;
        };
        let over = seen.memo.map(|(_, version)| (version, bucket));
        if let Some(version) = desk.put_memo(&session, &name, (&own, over), &value).await.map_err(of_request)? {
            if write.keep.is_some() {
                desk.sweep_memos_later();
            }
            return Ok(MemoWritten::Done { version });
        }
    }
    Err(restless().with_certainty(Certainty::NotApplied))
}

/// The memo of a name.
///
/// # Cancel safety
///
/// Cancel safe: it changes nothing.
pub(super) async fn memo(desk: Arc<Desk>, name: Name) -> Result<Option<Memo>> {
    let session = desk.usual().await?;
    let seen = desk.look_at_memo(&session, &desk.paths.memo(&name)).await.map_err(of_request)?;
    let Some((memo, _)) = seen.map_err(|error| error.about(&name))?.memo else { return Ok(None) };
    Ok(memo.seen(desk.store_wall(&session).await.map_err(of_request)?))
}

impl Desk {
    /// A memo's node, with all that anybody has been told of.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn look_at_memo(&self, session: &Session, path: &str) -> Answered<Result<Seen>> {
        // Answered in the order they are sent in, which is that of their first poll.
        let synced = session.ask(Kind::Read, || session.client.sync(path));
        let bucket = session.ask(Kind::Read, || session.client.check_stat(parent(path)));
        let read = session.ask(Kind::Read, || session.client.get_data(path));
        let (synced, bucket, read) = join3(synced, bucket, read).await;
        synced?;
        let bucket = bucket?.map(|stat| stat.version);
        let (data, stat) = match read {
            Ok(read) => read,
            Err(Refused::NoNode) => return Ok(Ok(Seen { memo: None, bucket })),
            Err(error) => return Err(error),
        };
        Ok(decode(&data).map(|stored| {
            let written = u64::try_from(stat.mtime).unwrap_or(0).saturating_mul(1000);
            let memo = stored.record(u64::try_from(stat.mzxid).unwrap_or(0), Some(written));
            Seen { memo: Some((memo, stat.version)), bucket }
        }))
    }

    /// The queue as far as it matters to the writer. None if it changed under the look.
    async fn front_of(&self, session: &Session, name: &Name, write: &MemoWrite) -> Answered<Option<Front>> {
        let listing = self.listing(session, name, Fresh::Yes).await?;
        let named: Vec<Node> = listing.nodes.iter().filter(|node| node.id == Some(write.id)).cloned().collect();
        let found = self.look_into_all(session, name, &named).await?;
        let Some((own, known)) = found.into_iter().find(|(_, known)| self.is_by(known, write)) else {
            return Ok(Some(Front { queue: Queue::default(), own: None }));
        };
        let upto = listing.place_of(&own.name).and_then(|place| listing.nodes.get(..=place)).unwrap_or_default();
        let tag = own.tag.unwrap_or_else(|| tag_of(&write.owner));
        let Some((nodes, seen)) = self.claims_among(session, name, upto, tag).await? else { return Ok(None) };
        let now = self.wall();
        let claim = |node: &&Node| claim_of(node, seen.get(&node.name).map(|known| &**known), now, self.limits().max);
        let queue = Queue::ordered(nodes.iter().map(claim));
        Ok(Some(Front { queue, own: Some((format!("{}/{}", self.paths.of(name), own.name), known.version)) }))
    }

    /// Whether a node is the one that the writer holds by. One that is yet to go within another of its owner has
    /// another token than that, and is not told that it holds before it is there.
    fn is_by(&self, known: &Known, write: &MemoWrite) -> bool {
        known.is_of(write.id)
            && known.token() == write.token.get()
            && write.number.is_none_or(|number| number == known.number())
            && !self.is_of_the_past(known.session)
    }

    /// Writes a memo if the claim's node is as it was seen, and so is the memo: its version and its bucket's, or
    /// none. Its version; none if one of them has changed.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown.
    pub(super) async fn put_memo(
        &self,
        session: &Session,
        name: &Name,
        ((own, own_version), over): (&(String, i32), Option<(i32, i32)>),
        value: &[u8],
    ) -> Answered<Option<u64>> {
        let path = self.paths.memo(name);
        let mut multi = session.client.new_multi_writer();
        multi.add_check_version(own, *own_version)?;
        match over {
            Some((version, bucket)) => {
                multi.add_check_version(parent(&path), bucket)?;
                multi.add_set_data(&path, value, Some(version))?;
            }
            None => {
                // Servers tell the zxid of what was changed within others, and not of what was made.
                multi.add_create(&path, b"", &session.options(CreateMode::Persistent))?;
                multi.add_set_data(&path, value, Some(0))?;
            }
        }
        let done = session.ask(Kind::Write, || {
            let committed = multi.commit();
            async move { committed.await.map_err(Refused::from) }
        });
        match done.await {
            Ok(results) => match results.last() {
                Some(MultiWriteResult::SetData { stat }) => Ok(u64::try_from(stat.mzxid).ok()),
                _ => Err(Refused::MarshallingError),
            },
            Err(Refused::NoNode | Refused::NodeExists | Refused::BadVersion) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::check::{client, name, request, stands};
    use super::super::release::release;
    use super::*;
    use crate::machine::ClaimRequest;

    /// What is written by what was seen a moment ago.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_is_written_once_the_claim_or_the_memo_is_not_as_it_was_seen() {
        let desk = client("/memo-as-seen").await;
        let session = desk.usual().await.unwrap();
        session.make_root(parent(&desk.paths.memo(&name()))).await.unwrap();
        let holds = request(Duration::from_secs(20));
        let own = async |holds: &ClaimRequest| {
            let (node, known) = desk.find(&session, &name(), holds.id, Fresh::Yes).await.unwrap().remove(0);
            (format!("{}/{}", desk.paths.of(&name()), node.name), known.version)
        };
        let put = async |own: &(String, i32), over| {
            desk.put_memo(&session, &name(), (own, over), b"{}\n").await.unwrap().is_some()
        };
        stands(&desk, &holds).await;
        let first = own(&holds).await;
        assert!(put(&first, None).await);
        assert!(!put(&first, None).await, "there is one by now");
        assert!(!put(&first, Some((7, 0))).await, "it was written meanwhile");
        // The node's counter begins with its making, and goes on with what it was made to say.
        let over = Some((1, 0));

        let again = ClaimRequest { attempt: 2, ..holds.clone() };
        stands(&desk, &again).await;
        assert!(!put(&first, over).await, "another attempt has the claim");
        let second = own(&again).await;
        release(desk.clone(), name(), again.id, None).await.unwrap();
        assert!(!put(&second, over).await, "it is released");
        let next = request(Duration::from_secs(20));
        stands(&desk, &next).await;
        assert!(!put(&second, over).await, "another one holds");
        assert!(put(&own(&next).await, over).await, "what is as it was seen is written");
    }
}
