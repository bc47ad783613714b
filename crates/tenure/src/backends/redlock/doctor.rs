//! What makes locks unsafe or slow in this fleet: each node by itself, then how they stand to each other.
//!
//! Looks over connections of its own and needs no fleet that works: one that is down, doubled or taken apart is what
//! it is for. It only reads; not even the question that a client begins with is asked, for that leaves a mark on a
//! node without data.

mod clocks;
mod node;
mod roll;
mod together;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use self::node::Looked;
use super::ballot::quorum;
use crate::backends::redis::url::{Address, Layout, Settings};
use crate::clock::Clock;
use crate::doctor::Checkup;
use crate::error::{Certainty, Error, ErrorKind, Result};

/// How long looking at one node may take.
const LOOK_MAX: Duration = Duration::from_secs(8);

/// A node of the URL, and what is known of it.
struct Node {
    address: Address,
    looked: Result<Looked>,
    /// Why it takes no part, if it does not.
    out: Option<String>,
}

impl Node {
    /// Says why it takes no part; the first reason stays.
    fn leave_out(&mut self, why: impl Into<String>) {
        self.out.get_or_insert_with(|| why.into());
    }
}

/// All nodes of the URL, in its order.
struct Nodes<'a> {
    all: Vec<Node>,
    settings: &'a Settings,
}

impl Nodes<'_> {
    /// The nodes that could be looked at, with their places.
    fn seen(&self) -> impl Iterator<Item = (usize, &Address, &Looked)> {
        let nodes = self.all.iter().enumerate();
        nodes.filter_map(|(index, node)| node.looked.as_ref().ok().map(|looked| (index, &node.address, looked)))
    }

    fn plain(&self) -> bool {
        self.settings.layout == Layout::Plain
    }

    fn quorum(&self) -> usize {
        quorum(self.all.len())
    }
}

/// Looks at all nodes. An error only if none could be looked at.
pub(super) async fn examine(settings: Arc<Settings>, clock: Arc<dyn Clock>) -> Result<Checkup> {
    let looks = settings.addresses.iter().map(|address| async {
        let look = timeout(LOOK_MAX, node::look(&settings, &clock, address.clone())).await;
        let looked = look.unwrap_or_else(|_| {
            let message = format!("it did not answer all questions within {LOOK_MAX:?}");
            Err(Error::new(ErrorKind::Unavailable, message).with_certainty(Certainty::NotApplied))
        });
        Node { address: address.clone(), looked, out: None }
    });
    let mut nodes = Nodes { all: join_all(looks).await, settings: &settings };
    if nodes.seen().next().is_none() {
        return Err(nobody(nodes.all));
    }
    let mut checkup = Checkup::default();
    roll::missing(&mut nodes, &mut checkup);
    roll::unfit(&mut nodes, &mut checkup);
    together::replicas(&mut nodes, &mut checkup);
    together::doubles(&mut nodes, &mut checkup);
    let clocks = clocks::examine(&mut nodes, &mut checkup);
    if !nodes.plain() {
        together::strangers(&mut nodes, &mut checkup);
        together::blanks(&mut nodes, &mut checkup);
        clocks::tokens(&nodes, clocks, &mut checkup);
    }
    clocks::speed(&mut nodes, &mut checkup);
    for (_, address, looked) in nodes.seen() {
        let mut found = Checkup::default();
        node::examine(looked, &settings, &mut found);
        for finding in &mut found.findings {
            finding.what = format!("{address}: {}", finding.what);
        }
        checkup.add(found);
    }
    roll::size(&nodes, &mut checkup);
    let mut report = roll::facts(&nodes, clocks);
    report.add(checkup);
    Ok(report)
}

/// The error of a fleet of which nothing can be seen.
fn nobody(nodes: Vec<Node>) -> Error {
    let (mut reasons, mut denied) = (Vec::new(), None);
    for node in nodes {
        let Err(error) = node.looked else { continue };
        reasons.push(format!("{}: {error}", node.address));
        if error.kind() == ErrorKind::Denied {
            denied = Some(error);
        }
    }
    denied.unwrap_or_else(|| {
        let message = format!("no node can be looked at; {}", reasons.join("; "));
        Error::new(ErrorKind::Quorum, message).with_certainty(Certainty::NotApplied)
    })
}
