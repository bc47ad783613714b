//! etcd: one key for each claim, in the order etcd made them.
//!
//! `etcd://[USER:PASSWORD@]H1[:2379][,H2,H3][?prefix=/locks/]`. A claim is a key under the name, bound to a lease;
//! the revision that made the key is its place in the queue and its fencing token. A client that waits watches the
//! keys of the name. Go's `concurrency.Mutex` and `etcdctl lock` stand in the same queues.
//!
//! | fault | exclusion |
//! |---|---|
//! | client crash | kept: its claims end one ttl later at the latest |
//! | client pause | kept: the deadline is the client's own |
//! | member crash, leader change, partition | kept: a majority decides; without one nothing is granted |
//! | a leader that stands still and goes on | kept since 3.4.31 and 3.5.13; before, etcd revokes leases that are renewed, and only the token protects |
//! | step of a member's clock | kept: leases count on clocks that do not step |
//!
//! Tokens are revisions: they grow as long as the cluster keeps its data. A cluster restored from a backup goes on
//! from that backup's revision: raise it (`etcdutl snapshot restore --bump-revision`), or begin with fresh names.

mod claim;
mod convoy;
mod date;
mod desk;
mod doctor;
mod ear;
mod end;
mod entry;
mod error;
mod glance;
mod lease;
mod link;
mod memo;
mod renew;
mod road;
mod silence;
mod sweep;
mod table;
mod turns;
mod unless_held;
mod url;
mod versions;
mod views;
mod watched;
mod watches;
mod window;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use self::desk::Desk;
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

/// One client of etcd.
pub struct EtcdBackend {
    desk: Arc<Desk>,
    hears: AtomicBool,
}

impl fmt::Debug for EtcdBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdBackend").field("url", &self.desk.road.settings.shown).finish_non_exhaustive()
    }
}

impl EtcdBackend {
    /// Connects to what a URL names.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a URL that is none, [`ErrorKind::Unavailable`] if no member answers for the cluster,
    /// [`ErrorKind::Denied`] for wrong credentials or a right that is missing.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is claimed yet.
    pub async fn open(url: &str, clock: Arc<dyn Clock>) -> Result<Self> {
        let settings = Settings::parse(url)?;
        let shown = settings.shown.clone();
        let desk = Desk::new(settings, clock);
        desk.road.link().await.map_err(|error| error.in_store(shown))?;
        desk.learn_versions().await;
        Ok(Self { desk: Arc::new(desk), hears: AtomicBool::new(false) })
    }

    fn with<T, F>(&self, ask: impl FnOnce(Arc<Desk>) -> F) -> Call<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        // It listens as long as the client lives.
        if !self.hears.swap(true, Ordering::AcqRel) {
            self.desk.runtime.spawn(ear::hear(Arc::downgrade(&self.desk)));
        }
        carried(&self.desk.runtime, ask(self.desk.clone()))
    }
}

/// Looks at a cluster, whether or not it can be used.
///
/// # Cancel safety
///
/// Cancel safe: at worst a lease of a second is left.
pub(crate) async fn examine(url: &str, clock: Arc<dyn Clock>) -> Result<Checkup> {
    let settings = Settings::parse(url)?;
    let shown = settings.shown.clone();
    let desk = Desk::new(settings, clock.clone());
    let found = doctor::examine(&desk, &*clock).await.map_err(|error| error.in_store(shown))?;
    let mut checkup = Checkup::of(&guarantees(&desk));
    checkup.add(found);
    Ok(checkup)
}

/// What the cluster guarantees, as old as its oldest member is.
fn guarantees(desk: &Desk) -> Guarantees {
    let failover = if desk.keeps_leases() { Survival::Kept } else { Survival::FencedOnly };
    Guarantees { failover, ..GUARANTEES }
}

const GUARANTEES: Guarantees = Guarantees {
    store: "etcd",
    time: "the leader's clock, which does not step",
    client_crash: Survival::Kept,
    client_pause: Survival::Kept,
    store_crash: Survival::Kept,
    failover: Survival::Kept,
    partition: Survival::Kept,
    clock_step: Survival::Kept,
    tokens: "while the cluster keeps its data; not after a restore from a backup",
    memos: Some(MemosSurvive::new(true, true, true)),
};

impl Backend for EtcdBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities { blocks: false, ttl_min: Duration::from_secs(1), ..Capabilities::ALL }
    }

    fn guarantees(&self) -> Guarantees {
        guarantees(&self.desk)
    }

    fn url(&self) -> &str {
        &self.desk.road.settings.shown
    }

    fn listen(&self, listener: Listener) {
        self.desk.ear.listen(listener);
    }

    fn claim(&self, name: &Name, request: ClaimRequest) -> Call<Answer<Claimed>> {
        let name = name.clone();
        self.with(|desk| async move { desk.claim(&name, &request).await })
    }

    fn renew(&self, batch: Vec<RenewRequest>, fresh: bool) -> Call<Answer<Vec<Renewed>>> {
        self.with(|desk| async move { desk.renew(batch, fresh).await })
    }

    fn release(&self, name: &Name, request: ReleaseRequest) -> Call<Released> {
        let name = name.clone();
        let ReleaseRequest { id, number, waiting_only, owner: _ } = request;
        if waiting_only {
            return self.with(|desk| async move { desk.release_unless_held(&name, id, number).await });
        }
        self.with(|desk| async move { desk.release(&name, id, number).await })
    }

    fn next_block(&self, name: &Name, _id: ClaimId, _block_end: Token, _next: ClaimRequest) -> Call<Answer<Block>> {
        let error = Error::new(ErrorKind::Invalid, "etcd gives no blocks of tokens").about(name);
        Box::pin(std::future::ready(Err(error)))
    }

    fn break_holders(&self, name: &Name, request: BreakRequest) -> Call<usize> {
        let name = name.clone();
        self.with(|desk| async move { desk.break_holders(&name, &request).await })
    }

    fn break_waiter(&self, name: &Name, request: WaiterBreak) -> Call<bool> {
        let name = name.clone();
        self.with(|desk| async move { desk.break_waiter(&name, &request).await })
    }

    fn inspect(&self, name: &Name) -> Call<NameView> {
        let name = name.clone();
        self.with(|desk| async move { desk.inspect(&name).await })
    }

    fn scan(&self, prefix: &str, after: Option<Name>, limit: usize) -> Call<Vec<NameView>> {
        let prefix = prefix.to_owned();
        self.with(|desk| async move { desk.scan(&prefix, after.as_ref(), limit).await })
    }

    fn write_memo(&self, name: &Name, write: MemoWrite) -> Call<MemoWritten> {
        let name = name.clone();
        self.with(|desk| async move { desk.write_memo(&name, &write).await })
    }

    fn memo(&self, name: &Name) -> Call<Option<Memo>> {
        let name = name.clone();
        self.with(|desk| async move { desk.memo(&name).await })
    }

    fn time(&self) -> Call<SystemTime> {
        self.with(|desk| async move { desk.time().await })
    }

    fn close(&self) -> Call<()> {
        self.with(|desk| async move {
            desk.revoke_unused().await;
            Ok(())
        })
    }

    fn examine(&self) -> Call<Checkup> {
        self.with(|desk| async move {
            let clock = desk.clock.clone();
            doctor::examine(&desk, &*clock).await
        })
    }
}
