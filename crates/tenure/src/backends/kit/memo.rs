//! A memo as stores of keys and nodes keep it: a line of JSON that says what it is, then its bytes as they are.
//!
//! Its version is the store's own number of the change that wrote it, so the value does not say it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::clock::{Moment, micros};
use crate::error::{Certainty, Error, ErrorKind, Result};
use crate::machine::{MemoRecord, Queue, write_memo};
use crate::memo::{MemoKind, MemoWrite, MemoWritten};
use crate::token::Token;

#[derive(Serialize, Deserialize)]
struct Head {
    kind: String,
    token: u64,
    write: u64,
    /// By the store's wall clock in microseconds; none where the store notes it by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    written_us: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keep_us: Option<u64>,
}

/// What the value of a memo says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backends) struct Stored {
    kind: MemoKind,
    token: Token,
    write: u64,
    bytes: Arc<[u8]>,
    /// When it was written, where the value says it, and for how long it is kept; in microseconds.
    written: Option<u64>,
    keep: Option<u64>,
}

/// The value of a memo that is written at this time of the store's wall clock; none where the store notes that
/// itself.
pub(in crate::backends) fn encode(write: &MemoWrite, written: Option<u64>) -> Vec<u8> {
    let head = Head {
        kind: write.kind.as_str().to_owned(),
        token: write.token.get(),
        write: write.write,
        written_us: written,
        keep_us: write.keep.map(micros),
    };
    // Words and numbers: this cannot fail.
    let mut value = serde_json::to_vec(&head).unwrap_or_default();
    value.push(b'\n');
    value.extend_from_slice(&write.bytes);
    value
}

/// What a value says.
pub(in crate::backends) fn decode(value: &[u8]) -> Result<Stored> {
    let end = value.iter().position(|byte| *byte == b'\n');
    let (head, bytes) = value.split_at_checked(end.unwrap_or(0)).ok_or_else(|| unreadable("it has no head"))?;
    let head: Head = serde_json::from_slice(head).map_err(|error| unreadable(&error.to_string()))?;
    let kind =
        MemoKind::from_word(&head.kind).ok_or_else(|| unreadable(&format!("it is of the kind {}", head.kind)))?;
    Ok(Stored {
        kind,
        token: Token(head.token),
        write: head.write,
        bytes: bytes.get(1..).unwrap_or_default().into(),
        written: head.written_us,
        keep: head.keep_us,
    })
}

fn unreadable(why: &str) -> Error {
    let message = "the memo of this name cannot be understood: a later tenure may have written it; upgrade tenure";
    Error::new(ErrorKind::Store, message).with_certainty(Certainty::NotApplied).because(why.to_owned())
}

impl Stored {
    /// The memo that has this version. `noted` is when it was written, where the store notes that by itself; such a
    /// store does not end it, the others do.
    pub(in crate::backends) fn record(self, version: u64, noted: Option<u64>) -> MemoRecord {
        let Self { kind, token, write, bytes, written, keep } = self;
        let until = noted.zip(keep).map(|(noted, keep)| noted.saturating_add(keep));
        let written = noted.or(written).unwrap_or(0);
        MemoRecord { kind, token, version, write, written, until, bytes }
    }
}

/// The answer to a write, by the machine's rule, given the queue and the memo as they were seen; none if it is to be
/// made.
pub(in crate::backends) fn answer_without_writing(
    queue: &Queue,
    present: Option<&MemoRecord>,
    write: &MemoWrite,
    now: Moment,
    wall: u64,
) -> Option<MemoWritten> {
    let mut memo = present.cloned();
    let answer = write_memo(Some(queue), &mut memo, write, now, (wall, 0));
    // The rule gives each write another version. What the store gives in its place is not known before it is made.
    let is_unchanged = memo.map(|memo| memo.version) == present.map(|present| present.version);
    is_unchanged.then_some(answer)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::owner::{ClaimId, Owner};

    fn write(bytes: &[u8]) -> MemoWrite {
        MemoWrite {
            id: ClaimId(1),
            owner: Owner::random(),
            number: None,
            token: Token(u64::MAX),
            after: 0,
            write: u64::MAX - 1,
            kind: MemoKind::Once,
            keep: Some(Duration::from_millis(1_500)),
            bytes: bytes.into(),
        }
    }

    #[test]
    fn a_value_comes_back_whatever_its_bytes_are() {
        for bytes in [&b""[..], b"\n", b"{}\n{}", b"\0\xff\n\n", &[b'x'; 65_536]] {
            let written = write(bytes);
            let stored = decode(&encode(&written, Some(7))).unwrap();
            let noted = stored.clone().record(9, Some(1_000));
            assert_eq!((noted.written, noted.until), (1_000, Some(1_501_000)), "where the store does not end it");
            let record = stored.record(9, None);
            assert_eq!((record.written, record.until), (7, None));
            assert_eq!((record.kind, record.token, record.write), (written.kind, written.token, written.write));
            assert_eq!((&*record.bytes, record.version), (bytes, 9));
        }
        let plain = MemoWrite { keep: None, ..write(b"x") };
        assert!(!String::from_utf8(encode(&plain, None)).unwrap().contains("_us"), "only what is said");
    }

    #[test]
    fn what_another_version_of_tenure_adds_is_passed_over_and_what_it_means_is_not_guessed() {
        let later = br#"{"kind":"user","token":5,"write":6,"more":[1]}
bytes"#;
        assert_eq!(&*decode(later).unwrap().bytes, b"bytes");
        for odd in [&b""[..], b"\n", b"bytes", b"{}\nx", b"{\"kind\":\"poll\",\"token\":5,\"write\":6}\nx"] {
            let error = decode(odd).unwrap_err();
            assert_eq!((error.kind(), error.certainty()), (ErrorKind::Store, Certainty::NotApplied));
        }
    }
}
