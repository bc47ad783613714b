//! Memos: a key of their own beside the record of their name, written and read by `memo.lua`.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::op;
use super::script::MEMO;
use super::wire::{failed, moving, number, odd, tagged, text};
use crate::backend::{Memo, MemoKind, MemoWrite, MemoWritten};
use crate::clock::micros;
use crate::error::{Certainty, Error, ErrorKind, Result};
use crate::machine::MemoRecord;
use crate::name::Name;
use crate::token::Token;

/// What is kept longer than this is kept for ever. Numbers are exact to 2^53 in the script, which is the year 2255.
const KEEP_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The key of a name's memo.
pub(super) fn key(name: &Name) -> String {
    op::key(name) + "memo"
}

/// One call of the script.
pub(in crate::backends) struct MemoCall {
    keys: Vec<String>,
    args: Vec<String>,
    /// The last argument.
    bytes: Option<Arc<[u8]>>,
}

impl MemoCall {
    pub(super) fn read(name: &Name) -> Arc<Self> {
        Arc::new(Self { keys: vec![key(name)], args: Vec::new(), bytes: None })
    }

    pub(super) fn write(name: &Name, write: &MemoWrite) -> Arc<Self> {
        Self::of(name, write, false)
    }

    /// The same write again, for a connection that has not written it.
    pub(super) fn write_again(name: &Name, write: &MemoWrite) -> Arc<Self> {
        Self::of(name, write, true)
    }

    fn of(name: &Name, write: &MemoWrite, again: bool) -> Arc<Self> {
        let keep = write.keep.filter(|keep| *keep < KEEP_MAX);
        let args = vec![
            write.id.to_string(),
            write.number.map(|number| number.to_string()).unwrap_or_default(),
            write.token.0.to_string(),
            write.after.to_string(),
            format!("{:016x}", write.write),
            write.kind.to_string(),
            keep.map(|keep| micros(keep).to_string()).unwrap_or_default(),
            u8::from(again).to_string(),
        ];
        Arc::new(Self { keys: vec![key(name), op::key(name)], args, bytes: Some(write.bytes.clone()) })
    }

    pub(super) fn command(&self, in_full: bool) -> Cmd {
        let bytes = self.bytes.as_ref().map_or(0, |bytes| bytes.len());
        let mut command = MEMO.call_sized(in_full, 1 + self.keys.len() + self.args.len(), 1024 + bytes);
        self.write_args(&mut command);
        command
    }

    /// The keys and the arguments.
    pub(super) fn write_args(&self, command: &mut Cmd) {
        command.arg(self.keys.len());
        for part in self.keys.iter().chain(&self.args) {
            command.arg(part);
        }
        if let Some(bytes) = &self.bytes {
            command.arg(&**bytes);
        }
    }
}

/// The server's time in microseconds, and what it answered.
fn parts(value: &Value) -> Result<(u64, &Value)> {
    let parts = match value {
        Value::Array(items) => match items.as_slice() {
            [now, answer] => number(now).map(|now| (now, answer)),
            _ => None,
        },
        _ => None,
    };
    parts.ok_or_else(|| odd(value))
}

/// What the script says if not all keys of the name are on this server.
pub(super) fn is_moving(value: &Value) -> Option<&str> {
    parts(value).ok().and_then(|(_, answer)| moving(answer))
}

/// The answer to a read.
pub(super) fn read(value: &Value) -> Result<Option<Memo>> {
    let (now, memo) = parts(value)?;
    if let Some(("e", items)) = tagged(memo) {
        return Err(failed(items));
    }
    seen(memo, now)
}

/// The answer to a write.
pub(super) fn written(value: &Value) -> Result<MemoWritten> {
    let (now, answer) = parts(value)?;
    let written = match tagged(answer) {
        Some(("e", items)) => return Err(failed(items)),
        Some(("d", [version])) => number(version).map(|version| MemoWritten::Done { version }),
        Some(("c", [present])) => Some(MemoWritten::Changed(seen(present, now)?)),
        Some(("k", [kind])) => Some(MemoWritten::OtherKind(kind_of(text(kind).unwrap_or_default())?)),
        None if *answer == Value::Int(0) => Some(MemoWritten::NotHolder),
        _ => None,
    };
    written.ok_or_else(|| odd(value))
}

/// Whether this answer says that the memo is written.
pub(super) fn is_done(value: &Value) -> bool {
    matches!(written(value), Ok(MemoWritten::Done { .. }))
}

fn seen(memo: &Value, now: u64) -> Result<Option<Memo>> {
    Ok(record(memo)?.and_then(|memo| memo.seen(now)))
}

/// A memo as the server has it.
pub(super) fn record(value: &Value) -> Result<Option<MemoRecord>> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(memo) => parse(memo)?.map(Some).ok_or_else(|| not_ours("the memo is not tenure's")),
        _ => Err(odd(value)),
    }
}

/// "KIND VERSION WRITE TOKEN WRITTEN UNTIL BYTES"
fn parse(memo: &[u8]) -> Result<Option<MemoRecord>> {
    let parts: Vec<&[u8]> = memo.splitn(7, |byte| *byte == b' ').collect();
    let [head @ .., bytes] = parts.as_slice() else { return Ok(None) };
    let head: Option<Vec<&str>> = head.iter().map(|part| std::str::from_utf8(part).ok()).collect();
    let Some([kind, version, write, token, written, until]) = head.as_deref() else { return Ok(None) };
    let Ok(write) = u64::from_str_radix(write, 16) else { return Ok(None) };
    let until = if *until == "-" { Ok(None) } else { until.parse().map(Some) };
    let (Ok(version), Ok(token), Ok(written), Ok(until)) = (version.parse(), token.parse(), written.parse(), until)
    else {
        return Ok(None);
    };
    let (kind, token, bytes) = (kind_of(kind)?, Token(token), Arc::from(*bytes));
    Ok(Some(MemoRecord { kind, token, version, write, written, until, bytes }))
}

fn kind_of(word: &str) -> Result<MemoKind> {
    let unknown = || not_ours("its memo is of a kind that this tenure does not know; upgrade tenure");
    MemoKind::from_word(word).ok_or_else(unknown)
}

fn not_ours(message: &str) -> Error {
    Error::new(ErrorKind::Store, message).with_certainty(Certainty::NotApplied)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(memo: &[u8]) -> Value {
        Value::BulkString(memo.to_vec())
    }

    #[test]
    fn bytes_of_any_kind_are_read_as_they_were_written() {
        for bytes in [&b""[..], b" ", b"a b  c", b"\0\xff\n 7", b"7 8 9 10 11 12 13"] {
            let memo = [b"once 1763000000000001 00000000000000ff 1763000000000000 1763000000000002 - ", bytes].concat();
            let memo = record(&bulk(&memo)).unwrap().unwrap();
            assert_eq!(&*memo.bytes, bytes);
            assert_eq!((memo.kind, memo.write, memo.until), (MemoKind::Once, 255, None));
            assert_eq!((memo.token, memo.version), (Token(1_763_000_000_000_000), 1_763_000_000_000_001));
        }
        assert_eq!(record(&Value::Nil).unwrap(), None);
    }

    #[test]
    fn what_is_not_ours_is_an_error_and_no_memo() {
        let error = record(&bulk(b"note 1 ff 1 1 - x")).unwrap_err();
        assert!(error.to_string().contains("upgrade"), "{error}");
        for memo in [&b""[..], b"user", b"user 1 ff 1 1 -", b"user x ff 1 1 - x", b"user 1 ff 1 1 soon x"] {
            assert_eq!(record(&bulk(memo)).unwrap_err().certainty(), Certainty::NotApplied, "{memo:?}");
        }
    }

    #[test]
    fn a_memo_that_is_kept_for_a_lifetime_is_kept_for_ever() {
        let write = |keep| MemoWrite {
            id: crate::owner::ClaimId(1),
            owner: crate::owner::Owner::new("o").unwrap(),
            number: None,
            token: Token(1),
            after: 0,
            write: 1,
            kind: MemoKind::User,
            keep: Some(keep),
            bytes: Arc::from(&b""[..]),
        };
        let name = Name::new("x").unwrap();
        let kept = |keep| MemoCall::write(&name, &write(keep)).args[6].clone();
        assert_eq!(kept(Duration::from_millis(1_500)), "1500000");
        assert_eq!(kept(Duration::MAX), "");
    }
}
