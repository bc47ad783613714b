//! Locks as other libraries keep them: exclusion with their users, and no more than their layout can carry.
//!
//! | layout | key | value |
//! |---|---|---|
//! | plain | the name | a string, set with NX and PX; ours begins with "tenure " |
//! | redisson | the name | a hash with one field `UUID:NUMBER`, as `RLock` has |

use std::time::Duration;

use redis::Value;

use super::lane::Work;
use super::script::{PLAIN, REDISSON, Script};
use super::url::Layout;
use super::wire;
use crate::backend::{ClaimRequest, Released};
use crate::error::{Error, ErrorKind, Result};
use crate::machine::{HolderView, NameView, Shape};
use crate::name::Name;
use crate::owner::{ClaimId, Owner};

fn script(layout: Layout) -> &'static Script {
    if layout == Layout::Redisson { &REDISSON } else { &PLAIN }
}

fn work(layout: Layout, name: &Name, args: Vec<String>) -> Work {
    Work::Script { script: script(layout), key: name.as_str().to_owned(), args }
}

fn millis(ttl: Duration) -> String {
    ttl.as_micros().div_ceil(1000).to_string()
}

/// From here on up, the value of a field is ours: the time in microseconds, or an attempt. Redisson counts holds there.
const OURS_FROM: u64 = 1 << 50;

/// An attempt as a number that is ours, and that Lua keeps exactly (up to 2^53).
fn attempt(attempt: u64) -> u64 {
    if attempt == 0 { 0 } else { attempt >> 12 | 1 << 52 }
}

/// What Redisson calls a holder: a client's UUID and a number, for us the owner and the claim.
fn field(owner: &Owner, id: ClaimId) -> String {
    let owner = owner.to_string();
    match (owner.get(..8), owner.get(8..12), owner.get(12..16), owner.get(16..20), owner.get(20..)) {
        (Some(a), Some(b), Some(c), Some(d), Some(e)) if is_id(&owner) => format!("{a}-{b}-{c}-{d}-{e}:{}", id.0),
        _ => format!("{owner}:{}", id.0),
    }
}

fn is_id(owner: &str) -> bool {
    owner.len() == 32 && owner.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The owner and claim of a field, if it can be one of ours.
fn parse_field(field: &str) -> Option<(Owner, ClaimId)> {
    let (owner, id) = field.rsplit_once(':')?;
    let bare: String = owner.chars().filter(|c| *c != '-').collect();
    let owner = if is_id(&bare) { &bare } else { owner };
    Some((Owner::new(owner).ok()?, ClaimId(id.parse().ok()?)))
}

pub(in crate::backends) fn claim(layout: Layout, name: &Name, request: &ClaimRequest) -> Work {
    let args = match layout {
        Layout::Redisson => vec![
            "claim".to_owned(),
            request.id.0.to_string(),
            millis(request.ttl),
            field(&request.owner, request.id),
            attempt(request.attempt).to_string(),
        ],
        _ => vec![
            "claim".to_owned(),
            request.id.to_string(),
            millis(request.ttl),
            request.attempt.to_string(),
            request.owner.to_string(),
            request.label.to_string(),
        ],
    };
    work(layout, name, args)
}

/// A plain claim whose number every server is told, instead of each choosing its own.
#[cfg(feature = "redlock")]
pub(in crate::backends) fn claim_numbered(name: &Name, request: &ClaimRequest, number: u64) -> Work {
    let mut work = claim(Layout::Plain, name, request);
    if let Work::Script { args, .. } = &mut work {
        args.push(number.to_string());
    }
    work
}

fn id_text(layout: Layout, id: ClaimId) -> String {
    if layout == Layout::Redisson { id.0.to_string() } else { id.to_string() }
}

pub(in crate::backends) fn renew(layout: Layout, name: &Name, id: ClaimId, ttl: Duration) -> Work {
    work(layout, name, vec!["renew".to_owned(), id_text(layout, id), millis(ttl)])
}

pub(in crate::backends) fn release(layout: Layout, name: &Name, id: ClaimId, number: Option<u64>) -> Work {
    let number = number.map_or_else(String::new, |number| number.to_string());
    work(layout, name, vec!["release".to_owned(), id_text(layout, id), number, channel(name)])
}

/// The answer to a release of a claim that waits: in these layouts none does, and one that holds stays.
pub(in crate::backends) fn unless_it_waits(view: &NameView, id: ClaimId, number: Option<u64>) -> Released {
    let is_meant = |claim: &(ClaimId, u64)| claim.0 == id && number.is_none_or(|number| number == claim.1);
    let holds = view.holders.iter().any(|held| held.claims.iter().any(is_meant));
    if holds { Released::Holds } else { Released::NotFound }
}

/// Where Redisson's waiters listen.
fn channel(name: &Name) -> String {
    let (open, close) = if name.as_str().contains('{') { ("", "") } else { ("{", "}") };
    format!("redisson_lock__channel:{open}{name}{close}")
}

pub(in crate::backends) fn show(layout: Layout, name: &Name) -> Work {
    work(layout, name, vec!["show".to_owned()])
}

/// What a key holds: a lock of ours, a foreign one, or nothing.
pub(in crate::backends) fn view(layout: Layout, name: Name, value: &Value) -> Result<Shown> {
    let parse = || {
        let Value::Array(items) = value else { return None };
        let [kind, text, left, now, rest @ ..] = items.as_slice() else { return None };
        let (kind, text, now) = (wire::text(kind)?, wire::text(text)?, wire::number(now)?);
        let mut view = NameView::free(name);
        if kind == "none" {
            return Some(Shown { view, ours: false });
        }
        let expires_in = wire::number(left).map(Duration::from_millis);
        let mut holder = HolderView {
            owner: None,
            label: None,
            token: None,
            shape: None,
            units: None,
            held: None,
            expires_in,
            renewed: None,
            claims: Vec::new(),
            within: Vec::new(),
        };
        let ours = match layout {
            Layout::Redisson => redisson_holder(&mut holder, text, rest.first().and_then(wire::number)),
            _ => plain_holder(&mut holder, text, now),
        };
        view.capacity = Some(1);
        view.holders.push(holder);
        Some(Shown { view, ours: ours.is_some() })
    };
    parse().ok_or_else(|| Error::new(ErrorKind::Store, format!("Redis answered something unexpected: {value:?}")))
}

/// What is shown of a key.
pub(in crate::backends) struct Shown {
    pub(in crate::backends) view: NameView,
    /// Whether it is surely a lock.
    pub(in crate::backends) ours: bool,
}

/// "tenure ID NUMBER ATTEMPT TTL OWNER AT LABEL"
fn plain_holder(holder: &mut HolderView, value: &str, now: u64) -> Option<()> {
    let mut words = value.strip_prefix("tenure ")?.splitn(7, ' ');
    let id: ClaimId = words.next()?.parse().ok()?;
    let number: u64 = words.next()?.parse().ok()?;
    let owner = Owner::new(words.nth(2)?).ok()?;
    let at: u64 = words.next()?.parse().ok()?;
    holder.label = Some(words.next()?.to_owned());
    holder.owner = Some(owner);
    (holder.shape, holder.units) = (Some(Shape::Exclusive), Some(1));
    holder.held = Some(Duration::from_micros(now.saturating_sub(at)));
    holder.claims = vec![(id, number)];
    Some(())
}

fn redisson_holder(holder: &mut HolderView, field: &str, number: Option<u64>) -> Option<()> {
    let number = number.filter(|number| *number >= OURS_FROM)?;
    let (owner, id) = parse_field(field)?;
    holder.owner = Some(owner);
    (holder.shape, holder.units) = (Some(Shape::Exclusive), Some(1));
    holder.claims = vec![(id, number)];
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_redisson_name_owner_and_claim() {
        let owner = Owner::new("00112233445566778899aabbccddeeff").unwrap();
        let text = field(&owner, ClaimId(7));
        assert_eq!(text, "00112233-4455-6677-8899-aabbccddeeff:7");
        assert_eq!(parse_field(&text), Some((owner, ClaimId(7))));
        let chosen = Owner::new("deploy@web-1:77").unwrap();
        assert_eq!(parse_field(&field(&chosen, ClaimId(u64::MAX))), Some((chosen, ClaimId(u64::MAX))));
    }
}
