//! Names and claims as znodes.
//!
//! A name is one znode below the chroot, and each of its claims a child of that, called as Apache Curator calls its
//! own: `_c_UUID-lock-NNNNNNNNNN`. What stands before `lock-` tells the shape; the first half of the UUID is the
//! claim's id, the second tells its owner from others.

use std::cmp::Ordering;

use crate::hash::fnv1a;
use crate::machine::Shape;
use crate::name::Name;
use crate::owner::{ClaimId, Owner};

/// What nodes of tenure's own are called that are no names: a name has no two `%` in a row.
const BEATS: &str = "%%beats";
const NOTES: &str = "%%notes";
const MEMOS: &str = "%%memos";
/// The server keeps this one for itself.
const RESERVED: &str = "zookeeper";
const TAG_BITS: u32 = 48;

/// Where things are.
#[derive(Clone, Debug)]
pub(super) struct Paths {
    root: String,
}

impl Paths {
    pub(super) fn new(root: &str) -> Self {
        Self { root: root.to_owned() }
    }

    /// The znode that has the names as children.
    pub(super) fn root(&self) -> &str {
        if self.root.is_empty() { "/" } else { &self.root }
    }

    pub(super) fn of(&self, name: &Name) -> String {
        format!("{}/{}", self.root, encoded(name.as_str()))
    }

    /// The znode of each session that is written to so as to keep the session alive.
    pub(super) fn beat(&self, session: i64) -> String {
        format!("{}/{BEATS}/{session:016x}", self.root)
    }

    /// What is left of a claim that was broken.
    pub(super) fn note(&self, id: ClaimId) -> String {
        format!("{}/{NOTES}/{id}", self.root)
    }

    /// What has the buckets of memos as children.
    pub(super) fn memos(&self) -> String {
        format!("{}/{MEMOS}", self.root)
    }

    /// The memo of a name, in one of 256 buckets: a server lists the children of a znode in one answer, of limited
    /// size.
    pub(super) fn memo(&self, name: &Name) -> String {
        let [.., bucket] = fnv1a(name.as_str().bytes()).to_be_bytes();
        format!("{}/{MEMOS}/{bucket:02x}/{}", self.root, encoded(name.as_str()))
    }

    /// Whether a node of ours is one of a claim.
    pub(super) fn is_claim(&self, path: &str) -> bool {
        let below = path.strip_prefix(&self.root).and_then(|rest| rest.strip_prefix('/'));
        below.is_some_and(|below| !below.starts_with("%%") && below.split('/').count() == 2)
    }
}

/// The znode of a path's parent.
pub(super) fn parent(path: &str) -> &str {
    path.rfind('/').map_or("", |end| &path[..end])
}

/// Whether a znode's path may have this character.
fn is_carried(c: char) -> bool {
    // Java's characters are half of one beyond these, which it takes for private ones.
    c >= ' ' && !matches!(c, '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..)
}

/// Whether this is a znode's path.
pub(super) fn is_path(path: &str) -> bool {
    let mut parts = path.split('/');
    parts.next() == Some("") && parts.all(|part| !matches!(part, "" | "." | "..") && part.chars().all(is_carried))
}

/// A name as the name of one znode.
pub(super) fn encoded(name: &str) -> String {
    let whole = matches!(name, "." | ".." | RESERVED);
    let mut node = String::with_capacity(name.len());
    for (place, c) in name.chars().enumerate() {
        if is_carried(c) && c != '/' && c != '%' && !(whole && place == 0) {
            node.push(c);
            continue;
        }
        for byte in c.encode_utf8(&mut [0; 4]).bytes() {
            node.push_str(&format!("%{byte:02X}"));
        }
    }
    node
}

/// The name that a znode stands for; none if it is something else.
pub(super) fn decoded(node: &str) -> Option<Name> {
    let text = percent_encoding::percent_decode_str(node).decode_utf8().ok()?;
    let name = Name::new(&*text).ok()?;
    (encoded(name.as_str()) == node).then_some(name)
}

/// Tells owners apart, nearly always: whoever relies on it looks into the claim.
pub(super) fn tag_of(owner: &Owner) -> u64 {
    let hash = fnv1a(owner.to_string().bytes());
    (hash ^ hash >> TAG_BITS) & ((1 << TAG_BITS) - 1)
}

/// What the node of a claim is called, up to its number. `nonce` tells two nodes of one claim apart.
pub(super) fn prefix(id: ClaimId, nonce: u16, owner: &Owner, shape: Shape) -> String {
    let shape = match shape {
        Shape::Exclusive => String::new(),
        Shape::Shared => "shared-".to_owned(),
        Shape::Permits { units, of } => format!("permits-{units}-{of}-"),
    };
    format!("{}{nonce:04x}-{:012x}-{shape}lock-", id_part(id), tag_of(owner))
}

/// What the nodes of a claim begin with.
fn id_part(id: ClaimId) -> String {
    let id = id.to_string();
    format!("_c_{}-{}-{}-", &id[..8], &id[8..12], &id[12..])
}

/// A number as the server writes it behind a name.
pub(super) fn digits(number: i64) -> String {
    format!("{number:010}")
}

/// The node of a claim, as far as its name tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) name: String,
    /// The number the server gave it: the order.
    pub(super) number: i64,
    /// None if its name is not one of ours. Curator's are taken for ours until one looks into them.
    pub(super) id: Option<ClaimId>,
    pub(super) tag: Option<u64>,
    pub(super) shape: Shape,
}

impl Node {
    /// None for a node that is not a claim at all.
    pub(super) fn parse(name: &str) -> Option<Self> {
        Self::of(name.to_owned())
    }

    fn of(name: String) -> Option<Self> {
        let ours = parse_ours(&name);
        let number = match &ours {
            Some(ours) => ours.3,
            None => trailing_number(&name)?,
        };
        let (id, tag, shape) = match ours {
            Some((id, tag, shape, _)) => (Some(id), Some(tag), shape),
            // Others take everything: their readers are not told apart.
            None => (None, None, Shape::Exclusive),
        };
        Some(Self { name, number, id, tag, shape })
    }
}

/// The number that these digits are, with dashes at these places. Written out: queues of thousands are parsed by it.
fn hex(text: &[u8], dashes: &[usize]) -> Option<u64> {
    let mut number = 0;
    for (place, byte) in text.iter().enumerate() {
        if dashes.contains(&place) {
            (*byte == b'-').then_some(())?;
            continue;
        }
        number = number << 4 | u64::from(char::from(*byte).to_digit(16)?);
    }
    Some(number)
}

fn parse_ours(name: &str) -> Option<(ClaimId, u64, Shape, i64)> {
    let rest = name.strip_prefix("_c_")?;
    let (uuid, rest) = rest.split_at_checked(36)?;
    let uuid = uuid.as_bytes();
    let (id, tag) = (hex(uuid.get(..18)?, &[8, 13])?, hex(uuid.get(24..)?, &[])?);
    if [18, 23].iter().any(|dash| uuid.get(*dash) != Some(&b'-')) || hex(uuid.get(19..23)?, &[]).is_none() {
        return None;
    }
    let rest = rest.strip_prefix('-')?;
    // Most of a long queue are exclusive, and need no search.
    let (shape, number) = rest.strip_prefix("lock-").map_or_else(|| rest.rsplit_once("lock-"), |it| Some(("", it)))?;
    let shape = match shape.strip_suffix('-') {
        None if shape.is_empty() => Shape::Exclusive,
        Some("shared") => Shape::Shared,
        Some(permits) => {
            let (units, of) = permits.strip_prefix("permits-")?.split_once('-')?;
            Shape::Permits { units: units.parse().ok()?, of: of.parse().ok()? }
        }
        None => return None,
    };
    let number = number.parse::<i32>().ok().filter(|_| number.len() >= 10 && !number.starts_with('+'))?;
    Some((ClaimId(id), tag, shape, number.into()))
}

/// The number at the end of the name of somebody else's node.
fn trailing_number(name: &str) -> Option<i64> {
    let start = name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (before, digits) = name.split_at(start);
    let number: i64 = digits.parse().ok()?;
    // Beyond its range the counter goes on below zero, where the sign takes one of the ten places or an eleventh.
    let negative = before.strip_suffix('-').is_some_and(|before| before.ends_with(['-', '_']));
    match digits.len() {
        10 if negative && number > i64::from(i32::MAX / 2) => Some(-number),
        9 if negative => Some(-number),
        10 => Some(number),
        _ => None,
    }
}

/// Whether this is what kazoo calls its locks: they outlive their sessions where it is told so. What others leave
/// without a session are data.
pub(super) fn may_stay(node: &str) -> bool {
    let stem = node.trim_end_matches(|c: char| c.is_ascii_digit());
    let stem = stem.strip_suffix('-').unwrap_or(stem);
    stem.ends_with("__lock__") || stem.ends_with("__rlock__")
}

/// The order of a name's claims.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    wrapped: bool,
}

impl Order {
    /// That of these, whatever order they are in now. The counter of a name that is never idle wraps after 2^31
    /// claims. Claims that live together are close, so that both ends of the range at once mean that it has just done
    /// so.
    pub(super) fn of(nodes: &[Node]) -> Self {
        let wrapped = nodes.iter().any(|node| node.number < 0) && nodes.iter().any(|node| node.number >= 1 << 30);
        Self { wrapped }
    }

    pub(super) fn compare(self, a: &Node, b: &Node) -> Ordering {
        let place = |number: i64| if self.wrapped && number < 0 { number + (1 << 32) } else { number };
        // A claim within another has its number, and is never the stronger one.
        let strength = |shape: Shape| if shape == Shape::Exclusive { 0 } else { 1 };
        let number = place(a.number).cmp(&place(b.number));
        number.then(strength(a.shape).cmp(&strength(b.shape))).then_with(|| a.name.cmp(&b.name))
    }
}

/// The claims among the children of a name, in their order.
pub(super) fn in_order(children: Vec<String>) -> Vec<Node> {
    let mut nodes: Vec<Node> = children.into_iter().filter_map(Node::of).collect();
    let order = Order::of(&nodes);
    nodes.sort_unstable_by(|a, b| order.compare(a, b));
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_is_one_znode_and_comes_back() {
        let odd = [
            "orders/42",
            ".",
            "..",
            "zookeeper",
            "a%2Fb",
            "a b",
            "é",
            "🔒",
            "\u{fffd}",
            "\u{e000}",
            "../..",
            "%%beats",
            "...",
            "zookeeper/x",
            "//",
            "~",
        ];
        for name in odd {
            let node = encoded(name);
            assert!(is_path(&format!("/{node}")) && !node.contains('/'), "{name}: {node}");
            assert!(!node.contains("%%") && node != RESERVED, "{name}: {node}");
            assert_eq!(decoded(&node).unwrap().as_str(), name);
        }
        assert_eq!(encoded("orders/42"), "orders%2F42");
        assert_eq!(encoded("zookeeper"), "%7Aookeeper");
        for node in ["%%beats", "%%notes", "%%memos", "a%2fb", "%7aookeeper", "a%", "%C3", "%61"] {
            assert!(decoded(node).is_none(), "{node}");
        }
    }

    #[test]
    fn a_memo_is_one_znode_in_a_bucket_and_no_claim() {
        let paths = Paths::new("/locks");
        let path = paths.memo(&Name::new("orders/42").unwrap());
        assert_eq!(path, "/locks/%%memos/df/orders%2F42");
        assert!(is_path(&path) && !paths.is_claim(&path) && parent(parent(&path)) == paths.memos());
    }

    #[test]
    fn a_node_tells_whose_claim_it_is_and_of_which_shape() {
        let (id, owner) = (ClaimId(0x0123_4567_89ab_cdef), Owner::new("me").unwrap());
        for shape in [Shape::Exclusive, Shape::Shared, Shape::Permits { units: 2, of: 30 }] {
            for number in [0, 7, i64::from(i32::MAX), i64::from(i32::MIN), -5] {
                let name = format!("{}{}", prefix(id, 0xbeef, &owner, shape), digits(number));
                let node = Node::parse(&name).unwrap();
                assert_eq!(
                    (node.id, node.tag, node.shape, node.number),
                    (Some(id), Some(tag_of(&owner)), shape, number)
                );
            }
        }
        let name = format!("{}{}", prefix(id, 1, &owner, Shape::Exclusive), digits(3));
        assert!(name.starts_with("_c_01234567-89ab-cdef-0001-") && name.ends_with("-lock-0000000003"), "{name}");
    }

    #[test]
    fn other_libraries_nodes_are_exclusive_claims_and_what_is_none_is_left_out() {
        for (name, number) in [
            ("0123456789abcdef0123456789abcdef__lock__0000000042", 42),
            ("_c_01234567-89ab-4def-8123-0123456789ab-lock-0000000007", 7),
            ("_c_01234567-89ab-4def-8123-0123456789ab-__READ__0000000009", 9),
            ("x-lock--2147483648", -2_147_483_648),
            ("0123__lock__-000000005", -5),
        ] {
            let node = Node::parse(name).unwrap();
            assert_eq!((node.number, node.shape), (number, Shape::Exclusive), "{name}");
        }
        for name in [
            "leases",
            "locks",
            "lock-12",
            "",
            "0123",
            "_c_x-lock-",
            "99999999999999999999999999",
            "_c_01234567-89ab-4def-8123-0123456789ab-lock-+000000007",
        ] {
            assert_eq!(Node::parse(name), None, "{name}");
        }
    }

    #[test]
    fn locks_that_may_outlive_their_session_are_told_from_data() {
        for name in ["0123__lock__0000000042", "0123__rlock__0000000042", "0123__lock__-000000005"] {
            assert!(may_stay(name), "{name}");
        }
        for name in ["backup-1700000000", "_c_01234567-89ab-4def-8123-0123456789ab-lock-0000000007", "", "__lock__x"] {
            assert!(!may_stay(name), "{name}");
        }
    }

    #[test]
    fn claims_are_in_order_also_when_the_counter_wraps() {
        let node = |number: i64| format!("_c_01234567-89ab-cdef-0001-0123456789ab-lock-{}", digits(number));
        let order = |numbers: &[i64]| -> Vec<i64> {
            in_order(numbers.iter().map(|number| node(*number)).collect()).iter().map(|node| node.number).collect()
        };
        assert_eq!(order(&[3, 1, 2]), [1, 2, 3]);
        let (max, min) = (i64::from(i32::MAX), i64::from(i32::MIN));
        assert_eq!(order(&[min + 1, max, min, max - 1]), [max - 1, max, min, min + 1]);
        assert_eq!(order(&[1, -2, 0, -1]), [-2, -1, 0, 1]);
    }
}
