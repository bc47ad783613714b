//! What people are shown.

use std::sync::Arc;

use futures_util::future::join_all;

use super::desk::Desk;
use super::error::of_request;
use super::look::Fresh;
use super::names::{Node, decoded};
use super::record::{Known, claim_of, is_made_up};
use super::session::Session;
use crate::error::Result;
use crate::machine::{NameView, Queue};
use crate::name::Name;

/// How many names are looked at a time.
const AT_A_TIME: usize = 64;

/// # Cancel safety
///
/// Cancel safe: it only looks.
pub(super) async fn inspect(desk: Arc<Desk>, name: Name) -> Result<NameView> {
    let session = desk.usual().await?;
    desk.view(&session, &name).await
}

/// # Cancel safety
///
/// Cancel safe: it only looks.
pub(super) async fn scan(desk: Arc<Desk>, prefix: String, after: Option<Name>, limit: usize) -> Result<Vec<NameView>> {
    let session = desk.usual().await?;
    let nodes = desk.children(&session, desk.paths.root(), Fresh::Yes).await.map_err(of_request)?;
    let mut names: Vec<Name> = nodes.iter().filter_map(|node| decoded(node)).collect();
    names.retain(|name| name.as_str().starts_with(&prefix) && after.as_ref().is_none_or(|after| name > after));
    names.sort();
    let mut views = Vec::new();
    for some in names.chunks(AT_A_TIME.min(limit.max(1))) {
        for view in join_all(some.iter().map(|name| desk.view(&session, name))).await {
            let view = view?;
            // The znode of a name stays for a while after its last claim.
            if !view.is_free() && views.len() < limit {
                views.push(view);
            }
        }
        if views.len() >= limit {
            break;
        }
    }
    Ok(views)
}

impl Desk {
    async fn view(&self, session: &Session, name: &Name) -> Result<NameView> {
        let nodes = self.all_nodes(session, name).await.map_err(of_request)?;
        Ok(shown(name, &nodes, self))
    }
}

fn shown(name: &Name, nodes: &[(Node, Arc<Known>)], desk: &Desk) -> NameView {
    let now = desk.wall();
    let claims = nodes.iter().map(|(node, known)| claim_of(node, Some(known), now, desk.limits().max));
    let mut view = NameView::of(name.clone(), &Queue::ordered(claims), now);
    for holder in &mut view.holders {
        // Servers do not tell when they last heard from a session.
        holder.renewed = None;
        if holder.owner.as_ref().is_some_and(is_made_up) {
            // What others do not record is not made up either. The server tells when it was made, and by which change.
            (holder.owner, holder.expires_in) = (None, None);
        }
    }
    for waiter in &mut view.waiters {
        if waiter.owner.as_ref().is_some_and(is_made_up) {
            waiter.owner = None;
        }
    }
    view
}
