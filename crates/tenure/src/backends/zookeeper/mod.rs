//! ZooKeeper: claims are ephemeral sequential nodes, and so wait in the order the servers gave them.
//!
//! `zookeeper://[USER:PASSWORD@]HOST1[:PORT],HOST2,HOST3/CHROOT?OPTIONS`. A name is one znode, and each claim of it a
//! child called as Apache Curator calls its own: both exclude each other. Whoever stands first holds; whoever waits
//! watches the one before it. Each ttl has a session of its own whose timeout it is, and which is kept alive by a
//! write: an answer to that proves that the quorum knows of the session, while an answered ping only proves that one
//! server lives.
//!
//! | fault | exclusion |
//! |---|---|
//! | client crash | kept: its claims end with its session, one ttl later at the latest |
//! | client pause | kept: the deadline is the client's own |
//! | server crash, also of the leader | kept: a quorum has every claim |
//! | partition | kept: without a quorum nothing is granted, and leases are lost at their deadlines |
//! | step of a server's clock | kept: sessions are timed by clocks that do not step |
//!
//! Tokens are the zxids of the nodes' creation: they grow as long as the ensemble keeps its data.

mod append;
mod appends;
#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod check;
mod close;
mod desk;
mod doctor;
mod doubt;
mod error;
mod keeper;
mod limits;
mod listings;
mod look;
mod memo;
mod memo_sweep;
mod mind;
mod moving;
mod names;
mod probe;
mod pulse;
mod record;
mod release;
mod renew;
mod session;
mod stand;
mod table;
mod time;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;
mod trust;
mod unless_held;
mod url;
mod views;

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use self::desk::Desk;
use self::error::of_request;
use self::url::Settings;
use crate::backend::{
    Answer, Backend, Block, BreakRequest, Call, Capabilities, ClaimRequest, Claimed, Guarantees, Listener, Memo,
    MemoWrite, MemoWritten, MemosSurvive, ReleaseRequest, Released, RenewRequest, Renewed, Survival, WaiterBreak,
    carried,
};
use crate::clock::Clock;
use crate::doctor::Checkup;
use crate::error::{Error, ErrorKind, Result};
use crate::machine::NameView;
use crate::name::Name;
use crate::owner::ClaimId;
use crate::token::Token;

/// One client of ZooKeeper.
pub struct ZookeeperBackend {
    desk: Arc<Desk>,
}

impl fmt::Debug for ZookeeperBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZookeeperBackend").field("url", &self.desk.settings.shown).finish_non_exhaustive()
    }
}

impl ZookeeperBackend {
    /// Connects to what a URL names, and makes the chroot if it is not there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a URL that is none, [`ErrorKind::Unavailable`] if no server answers or they have no
    /// quorum, [`ErrorKind::Denied`] if they refuse the login or the chroot belongs to somebody else.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is claimed yet.
    pub async fn open(url: &str, clock: Arc<dyn Clock>) -> Result<Self> {
        let settings = Settings::parse(url)?;
        let shown = settings.shown.clone();
        let opened = async {
            let told = probe::first(&settings).await?;
            let desk = Desk::new(settings, told, clock);
            let session = desk.usual().await?;
            session.make_root(desk.paths.root()).await.map_err(of_request)?;
            Ok(Self { desk })
        };
        opened.await.map_err(|error: Error| error.in_store(shown))
    }
}

impl Backend for ZookeeperBackend {
    fn capabilities(&self) -> Capabilities {
        let limits = self.desk.limits();
        Capabilities {
            blocks: false,
            ttl_min: limits.floor().max(crate::TTL_MIN),
            ttl_max: limits.max.min(crate::TTL_MAX),
            // What a lease counts from is proven by a write that comes a tick later.
            lease_lag: limits.tick,
            ..Capabilities::ALL
        }
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            store: "zookeeper",
            time: "the leader's monotonic clock (sessions)",
            client_crash: Survival::Kept,
            client_pause: Survival::Kept,
            store_crash: Survival::Kept,
            failover: Survival::Kept,
            partition: Survival::Kept,
            clock_step: Survival::Kept,
            tokens: "as long as the ensemble keeps its data",
            memos: Some(MemosSurvive::new(true, true, true)),
        }
    }

    fn url(&self) -> &str {
        &self.desk.settings.shown
    }

    fn listen(&self, listener: Listener) {
        self.desk.listen(listener);
    }

    fn claim(&self, name: &Name, request: ClaimRequest) -> Call<Answer<Claimed>> {
        carried(&self.desk.runtime, append::claim(self.desk.clone(), name.clone(), request))
    }

    fn renew(&self, batch: Vec<RenewRequest>, _fresh: bool) -> Call<Answer<Vec<Renewed>>> {
        // A session has one connection, and the client library has no way to give it up. It does so by itself when it
        // is silent, which it is soon after a write was not answered: servers answer a session in order.
        carried(&self.desk.runtime, renew::renew(self.desk.clone(), batch))
    }

    fn release(&self, name: &Name, request: ReleaseRequest) -> Call<Released> {
        let ReleaseRequest { id, number, waiting_only, owner: _ } = request;
        if waiting_only {
            let released = unless_held::release_unless_held(self.desk.clone(), name.clone(), id, number);
            return carried(&self.desk.runtime, released);
        }
        carried(&self.desk.runtime, release::release(self.desk.clone(), name.clone(), id, number))
    }

    fn close(&self) -> Call<()> {
        let desk = self.desk.clone();
        carried(&self.desk.runtime, async move {
            desk.close().await;
            Ok(())
        })
    }

    fn next_block(&self, _: &Name, _: ClaimId, _: Token, _: ClaimRequest) -> Call<Answer<Block>> {
        Box::pin(async { Err(Error::new(ErrorKind::Invalid, "ZooKeeper gives no blocks of tokens")) })
    }

    fn break_holders(&self, name: &Name, request: BreakRequest) -> Call<usize> {
        carried(&self.desk.runtime, release::break_holders(self.desk.clone(), name.clone(), request))
    }

    fn break_waiter(&self, name: &Name, request: WaiterBreak) -> Call<bool> {
        carried(&self.desk.runtime, unless_held::break_waiter(self.desk.clone(), name.clone(), request))
    }

    fn inspect(&self, name: &Name) -> Call<NameView> {
        carried(&self.desk.runtime, views::inspect(self.desk.clone(), name.clone()))
    }

    fn scan(&self, prefix: &str, after: Option<Name>, limit: usize) -> Call<Vec<NameView>> {
        carried(&self.desk.runtime, views::scan(self.desk.clone(), prefix.to_owned(), after, limit))
    }

    fn write_memo(&self, name: &Name, write: MemoWrite) -> Call<MemoWritten> {
        carried(&self.desk.runtime, memo::write_memo(self.desk.clone(), name.clone(), write))
    }

    fn memo(&self, name: &Name) -> Call<Option<Memo>> {
        carried(&self.desk.runtime, memo::memo(self.desk.clone(), name.clone()))
    }

    fn time(&self) -> Call<SystemTime> {
        carried(&self.desk.runtime, time::time(self.desk.clone()))
    }

    fn examine(&self) -> Call<Checkup> {
        carried(&self.desk.runtime, doctor::examine(self.desk.clone()))
    }
}
