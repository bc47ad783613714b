//! What several looks share: each name is listed once for all its claims.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OnceCell;

use super::desk::Desk;
use super::look::Fresh;
use super::names::Node;
use super::session::{Answered, Session};
use crate::name::Name;

type Listing = Arc<OnceCell<Arc<Vec<Node>>>>;

/// The names of one batch, each listed when it is first asked for: a hundred claims that wait for one name would otherwise
/// list the hundred of them a hundred times.
#[derive(Debug, Default)]
pub(super) struct Listings {
    listed: Mutex<HashMap<(i64, Name), Listing>>,
}

impl Listings {
    /// The claims of a name in order, as this session saw them since the batch began.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn of(&self, desk: &Desk, session: &Session, name: &Name) -> Answered<Arc<Vec<Node>>> {
        let listing = {
            let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
            listed.entry((session.id, name.clone())).or_default().clone()
        };
        let list = async || desk.nodes(session, name, Fresh::No).await.map(Arc::new);
        listing.get_or_try_init(list).await.cloned()
    }
}
