//! Looking at names: what more than half of the nodes have is so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;
use tokio::time::timeout;

use super::fleet::Fleet;
use super::wire::{self, KEY_PREFIX, ShownHolder};
use crate::backend::BreakRequest;
use crate::backends::redis::foreign;
use crate::backends::redis::scan::{self, Pages};
use crate::backends::redis::url::Layout;
use crate::backends::redis::wire as redis_wire;
use crate::error::{Certainty, Error, ErrorKind, Result};
use crate::machine::{HolderView, NameView, Shape, WaiterView};
use crate::name::Name;
use crate::owner::{ClaimId, Owner};
use crate::token::Token;

/// How long a node may take to show what it has.
const SHOW_MAX: Duration = Duration::from_millis(500);
/// How long going through the keys of a node may take.
const SCAN_MAX: Duration = Duration::from_secs(4);
/// How many names are looked at in one breath.
const LOOK_AT_ONCE: usize = 64;

/// Every node's answer to a question about one name; an error if too few answer.
async fn ask_all(fleet: &Arc<Fleet>, work: impl Fn() -> crate::backends::redis::lane::Work) -> Result<Vec<Value>> {
    let calls = (0..fleet.members.len()).filter_map(|index| Some((index, fleet.ask(index, work(), false)?)));
    let calls = calls.map(|(index, call)| async move {
        let answer = match timeout(SHOW_MAX, call).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err(format!("did not answer within {SHOW_MAX:?}")),
        };
        (index, answer.map(|values| values.into_iter().next().unwrap_or(Value::Nil)))
    });
    let calls: Vec<_> = calls.collect();
    let mut values = Vec::new();
    let mut why = Vec::new();
    for (index, answer) in join_all(calls).await {
        match answer {
            Ok(value) => values.push(value),
            Err(reason) => why.push((index, reason)),
        }
    }
    if values.len() < fleet.quorum() {
        return Err(fleet.no_quorum(&why, Certainty::NotApplied));
    }
    Ok(values)
}

/// Claims that nodes have of a name: by whom, and on how many.
fn by_claim(shown: Vec<ShownHolder>) -> BTreeMap<(ClaimId, u64), Vec<ShownHolder>> {
    let mut claims: BTreeMap<_, Vec<ShownHolder>> = BTreeMap::new();
    for holder in shown {
        claims.entry((holder.id, holder.token.0)).or_default().push(holder);
    }
    claims
}

pub(super) async fn inspect(fleet: &Arc<Fleet>, name: &Name) -> Result<NameView> {
    let values = ask_all(fleet, || wire::show(fleet.layout(), name)).await?;
    if fleet.layout() == Layout::Plain {
        return inspect_plain(fleet, name, &values);
    }
    let (mut holders, mut waiting) = (Vec::new(), BTreeMap::new());
    for value in &values {
        // A key that is not ours, on one node, hides nothing.
        let Ok(shown) = wire::shown(value) else { continue };
        holders.extend(shown.holder);
        for (id, owner, label, since) in shown.waiters {
            waiting.entry(id).or_insert((since, id, owner, label));
        }
    }
    let mut view = NameView::free(name.clone());
    let now = fleet.time();
    // Nodes that do not answer may have it too.
    let enough = fleet.quorum().saturating_sub(fleet.members.len() - values.len()).max(1);
    let held = by_claim(holders).into_values().filter(|nodes| nodes.len() >= enough).max_by_key(Vec::len);
    if let Some(mut nodes) = held {
        // It is over when fewer than a majority have it.
        nodes.sort_by_key(|holder| std::cmp::Reverse(holder.expires_in));
        let expires_in = nodes.get(fleet.quorum() - 1).or(nodes.last()).map(|holder| holder.expires_in);
        let holder = nodes.swap_remove(0);
        view.capacity = Some(1);
        view.holders.push(HolderView {
            owner: Some(holder.owner),
            label: Some(holder.label),
            token: Some(holder.token),
            shape: Some(Shape::Exclusive),
            units: Some(1),
            held: Some(Duration::from_micros(now.saturating_sub(holder.token.0))),
            expires_in,
            renewed: None,
            claims: vec![(holder.id, holder.number)],
            // Nodes do not keep it.
            within: Vec::new(),
        });
    }
    let mut waiting: Vec<_> = waiting.into_values().collect();
    waiting.sort_by_key(|(since, ..)| *since);
    let waiter = |(since, id, owner, label): (u64, ClaimId, Owner, String)| WaiterView {
        owner: Some(owner),
        label: Some(label),
        shape: Some(Shape::Exclusive),
        units: Some(1),
        waited: Some(Duration::from_micros(now.saturating_sub(since))),
        claim: (id, 0),
        within: Vec::new(),
    };
    view.waiters = waiting.into_iter().map(waiter).collect();
    Ok(view)
}

fn inspect_plain(fleet: &Fleet, name: &Name, values: &[Value]) -> Result<NameView> {
    let enough = fleet.quorum().saturating_sub(fleet.members.len() - values.len()).max(1);
    // Foreign clients are told apart by what they wrote, and by nothing else.
    let mut held: BTreeMap<String, Vec<NameView>> = BTreeMap::new();
    for value in values {
        let view = foreign::view(Layout::Plain, name.clone(), value)?.view;
        if let (Some(_), Value::Array(items)) = (view.holders.first(), value) {
            // Ours differ by the time at which each server wrote it.
            let ours = view.holders.first().and_then(|holder| holder.claims.first());
            let written = ours.map_or_else(|| format!("{:?}", items.get(1)), |claim| format!("{claim:?}"));
            held.entry(written).or_default().push(view);
        }
    }
    let expires_in = |view: &NameView| view.holders.first().and_then(|holder| holder.expires_in);
    let Some(mut views) = held.into_values().filter(|views| views.len() >= enough).max_by_key(Vec::len) else {
        return Ok(NameView::free(name.clone()));
    };
    // It is over when fewer than a majority have it.
    views.sort_by_key(|view| std::cmp::Reverse(expires_in(view)));
    let last = views.len() - 1;
    Ok(views.swap_remove(last.min(fleet.quorum() - 1)))
}

pub(super) async fn scan(
    fleet: &Arc<Fleet>,
    pages: &Pages,
    prefix: &str,
    after: Option<Name>,
    limit: usize,
) -> Result<Vec<NameView>> {
    let mut views = Vec::new();
    let mut after = after;
    while views.len() < limit {
        let names = names(fleet, pages, prefix, after.as_ref(), LOOK_AT_ONCE.min(limit)).await?;
        let Some(last) = names.last().cloned() else { break };
        for look in join_all(names.iter().map(|name| inspect(fleet, name))).await {
            let view = look?;
            let lock = fleet.layout() != Layout::Plain || view.holders.iter().any(|holder| holder.owner.is_some());
            if lock && !view.is_free() && views.len() < limit {
                views.push(view);
            }
        }
        after = Some(last);
    }
    Ok(views)
}

/// The next names that any node has: so many must say that none is missed which more than half have.
async fn names(
    fleet: &Arc<Fleet>,
    pages: &Pages,
    prefix: &str,
    after: Option<&Name>,
    count: usize,
) -> Result<Vec<Name>> {
    let plain = fleet.layout() == Layout::Plain;
    let pattern = if plain { scan::pattern("", prefix, "") } else { scan::pattern(KEY_PREFIX, prefix, "}") };
    let kind = plain.then_some("string");
    pages
        .next(prefix, after, count, async |found| {
            let (mut answered, mut why) = (0, Vec::new());
            let name_of = |key: &[u8]| if plain { scan::bare_name(key) } else { wire::name_of(key) };
            let members = fleet.members.iter().enumerate().filter(|(_, member)| member.is_up());
            let scans = members.map(|(index, member)| {
                let pattern = &pattern;
                async move {
                    let mut names = Vec::new();
                    let keys = scan::keys(&member.node, pattern, kind, |key| names.extend(name_of(key)));
                    let scanned =
                        timeout(SCAN_MAX, keys).await.map_err(|_| format!("did not answer within {SCAN_MAX:?}"));
                    (index, scanned.and_then(|scanned| scanned.map_err(|error| error.to_string())).map(|()| names))
                }
            });
            for (index, scanned) in join_all(scans).await {
                match scanned {
                    Ok(names) => {
                        answered += 1;
                        names.into_iter().for_each(|name| found.take(Some(name)));
                    }
                    Err(error) => why.push((index, error)),
                }
            }
            if answered < fleet.members.len() - fleet.quorum() + 1 {
                return Err(fleet.no_quorum(&why, Certainty::NotApplied));
            }
            Ok(())
        })
        .await
}

/// Ends the claims that nodes have of a name, or those that are meant; how many of them held it.
pub(super) async fn break_holders(fleet: &Arc<Fleet>, name: &Name, request: &BreakRequest) -> Result<usize> {
    let values = ask_all(fleet, || wire::show(fleet.layout(), name)).await?;
    let meant = |other: &Owner| request.owner.as_ref().is_none_or(|owner| owner == other);
    // Where there are no tokens, none is low enough.
    let up_to = |token: Option<Token>| request.up_to.is_none_or(|up_to| token.is_some_and(|token| token <= up_to));
    // Nodes that answered have ended it, however few they are.
    let unknown = |error: Error| error.unknown_if(true);
    let mut ended = 0;
    if fleet.layout() == Layout::Plain {
        let view = inspect_plain(fleet, name, &values)?;
        for holder in view.holders {
            let Some(holder_is) = &holder.owner else {
                let message = "a foreign client holds it: only that client, or redis-cli, can end it";
                return Err(Error::new(ErrorKind::Conflict, message).about(name));
            };
            for (id, number) in holder.claims.iter().filter(|_| meant(holder_is) && up_to(holder.token)) {
                let work = || foreign::release(Layout::Plain, name, *id, Some(*number));
                let answers = ask_all(fleet, work).await.map_err(unknown)?;
                let yes = |value: &Value| matches!(redis_wire::released(value), Ok(crate::backend::Released::Yes));
                ended += usize::from(answers.iter().any(yes));
            }
        }
        return Ok(ended);
    }
    let mut holders = Vec::new();
    for value in &values {
        let shown = wire::shown(value).ok().and_then(|shown| shown.holder);
        holders.extend(shown.filter(|holder| meant(&holder.owner) && up_to(Some(holder.token))));
    }
    for ((id, _), nodes) in by_claim(holders) {
        let answers = ask_all(fleet, || wire::break_claim(name, id, request)).await.map_err(unknown)?;
        let yes = answers.iter().filter(|value| **value == Value::Int(1)).count();
        // A few nodes may have a claim that never held: it goes as well, and does not count.
        ended += usize::from(yes > 0 && nodes.len() >= fleet.quorum().min(values.len()));
    }
    Ok(ended)
}
