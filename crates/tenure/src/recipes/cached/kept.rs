//! The values that a client has at hand, bounded in number and in bytes.

use std::collections::{BTreeMap, HashMap};

use super::value::{Value, Wanted};
use crate::clock::Moment;
use crate::name::Name;

/// The most values.
const VALUES_MAX: usize = 4096;
/// The most bytes, of values and names. A value that is larger than this is not kept.
const BYTES_MAX: usize = 16 * 1024 * 1024;

/// Values by their names. When there are too many, those go first that came first.
#[derive(Debug, Default)]
pub(super) struct Kept {
    values: HashMap<Name, (u64, Value)>,
    /// Names in the order in which their values came.
    order: BTreeMap<u64, Name>,
    bytes: usize,
    /// How many values ever came.
    came: u64,
}

impl Kept {
    /// The value of a name, if the caller takes it.
    pub(super) fn find(&self, name: &Name, wanted: &Wanted, now: Moment) -> Option<Value> {
        let (_, value) = self.values.get(name)?;
        wanted.takes(value, now).then(|| value.clone())
    }

    /// Keeps a value in place of the one before it.
    pub(super) fn put(&mut self, name: &Name, value: &Value) {
        self.remove(name);
        let bytes = size(name, value);
        if bytes > BYTES_MAX {
            return;
        }
        while self.values.len() >= VALUES_MAX || self.bytes + bytes > BYTES_MAX {
            let Some((_, first)) = self.order.pop_first() else { break };
            self.remove(&first);
        }
        self.came += 1;
        self.bytes += bytes;
        self.order.insert(self.came, name.clone());
        self.values.insert(name.clone(), (self.came, value.clone()));
    }

    fn remove(&mut self, name: &Name) {
        if let Some((came, value)) = self.values.remove(name) {
            self.order.remove(&came);
            self.bytes -= size(name, &value);
        }
    }
}

fn size(name: &Name, value: &Value) -> usize {
    name.as_str().len() + value.bytes.len()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const WANTED: Wanted = Wanted { keep: Duration::from_secs(10), since: Moment(0) };

    fn name(number: usize) -> Name {
        Name::new(format!("name-{number}")).unwrap()
    }

    fn value(bytes: usize) -> Value {
        Value { bytes: vec![7; bytes].into(), age: Duration::ZERO, at: Moment(0) }
    }

    #[test]
    fn there_are_never_too_many_and_the_first_go_first() {
        let mut kept = Kept::default();
        for number in 0..VALUES_MAX + 10 {
            kept.put(&name(number), &value(1));
        }
        assert_eq!((kept.values.len(), kept.order.len()), (VALUES_MAX, VALUES_MAX));
        assert_eq!(kept.find(&name(9), &WANTED, Moment(0)), None);
        assert!(kept.find(&name(10), &WANTED, Moment(0)).is_some());
        // One that comes again is the latest, and counts once.
        kept.put(&name(10), &value(2));
        kept.put(&name(0), &value(1));
        assert!(kept.find(&name(10), &WANTED, Moment(0)).is_some_and(|value| value.bytes.len() == 2));
        assert_eq!(kept.find(&name(11), &WANTED, Moment(0)), None);
        assert_eq!((kept.values.len(), kept.order.len()), (VALUES_MAX, VALUES_MAX));
    }

    #[test]
    fn there_are_never_too_many_bytes() {
        let mut kept = Kept::default();
        for number in 0..40 {
            kept.put(&name(number), &value(1024 * 1024));
            assert!(kept.bytes <= BYTES_MAX, "{}", kept.bytes);
        }
        assert_eq!(kept.values.len(), 15, "each name takes a little, too");
        kept.put(&name(39), &value(BYTES_MAX));
        assert_eq!(kept.find(&name(39), &WANTED, Moment(0)), None, "too large; nor is the one before it kept");
        assert_eq!(kept.values.len(), 14);
        let counted: usize = kept.values.iter().map(|(name, (_, value))| size(name, value)).sum();
        assert_eq!(kept.bytes, counted);
    }
}
