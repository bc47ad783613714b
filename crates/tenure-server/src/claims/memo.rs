//! Memos: written for whoever holds.

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tenure::backend::{MemoWrite, MemoWritten, Shape};
use tenure::observe::Asked;
use tenure::{Name, NameView};

use super::shared::Claims;
use crate::problem::{Answer, Problem};

impl Claims {
    /// Writes a memo; answers its version.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: the same request again answers the same.
    pub(crate) async fn write_memo(&self, name: &Name, write: MemoWrite) -> Answer<u64> {
        let call = self.backend.write_memo(name, write.clone());
        match self.ask(Asked::Memo, call, Duration::MAX).await? {
            MemoWritten::Done { version } => Ok(version),
            MemoWritten::Changed(present) => Err(Problem::memo_changed(present.map_or(0, |memo| memo.version))),
            MemoWritten::OtherKind(kind) => Err(Problem::memo_of_another_kind(kind)),
            // Nothing was written. A look tells why, as far as it still can.
            MemoWritten::NotHolder => {
                let view = self.ask(Asked::Inspect, self.backend.inspect(name), Duration::MAX).await;
                Err(view.map_or_else(
                    |_| not_held("the claim does not hold the name with this token"),
                    |view| why_not(&view, &write),
                ))
            }
        }
    }
}

/// Why a claim may not write.
fn why_not(view: &NameView, write: &MemoWrite) -> Problem {
    let id = write.id;
    if let Some(mark) = view.breaks.iter().find(|mark| mark.claim == id) {
        return Problem::broken(&mark.by, &mark.reason);
    }
    for holder in &view.holders {
        let Some((_, number)) = holder.claims.iter().find(|(claim, _)| *claim == id) else { continue };
        if write.number.is_some_and(|meant| meant != *number) {
            return Problem::conflict("superseded", "another request has taken the claim over: it has another number");
        }
        return not_held(match holder.shape {
            Some(Shape::Exclusive) => "the claim holds the name with another token",
            _ => "only the exclusive holder writes a memo",
        });
    }
    if view.waiters.iter().any(|waiter| waiter.claim.0 == id) {
        return not_held("the claim waits: only the holder writes a memo");
    }
    Problem::gone("lost", "the store has no such claim: its ttl was over, or it was released")
}

fn not_held(message: &str) -> Problem {
    Problem::conflict("not_held", message)
}

/// The id of a write in the store: 64 bits of a SHA-256 over all that was asked for. A repetition is one write; whoever
/// counts its writes from one again, or sends another value by the same number, writes another.
pub(crate) fn write_id(name: &Name, write: &MemoWrite) -> u64 {
    let mut hash = Sha256::new();
    let keep = write.keep.map_or_else(String::new, |keep| keep.as_millis().to_string());
    let parts = [name.as_str(), &write.owner.to_string(), &write.id.to_string(), write.kind.as_str(), &keep];
    for part in parts.map(str::as_bytes).into_iter().chain([&*write.bytes]) {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    for number in [write.token.0, write.after, write.write] {
        hash.update(number.to_be_bytes());
    }
    let digest = hash.finalize();
    digest.iter().take(8).fold(0, |id, byte| id << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure::backend::MemoKind;
    use tenure::{ClaimId, Owner, Token};

    #[test]
    fn only_the_same_request_is_the_same_write() {
        let name = Name::new("x").unwrap();
        let write = MemoWrite {
            id: ClaimId(1),
            owner: Owner::new("o").unwrap(),
            number: None,
            token: Token(7),
            after: 0,
            write: 1,
            kind: MemoKind::User,
            keep: None,
            bytes: b"one".as_slice().into(),
        };
        let id = write_id(&name, &write);
        assert_eq!(write_id(&name, &write.clone()), id);
        // Which request has the claim is no part of what is written.
        assert_eq!(write_id(&name, &MemoWrite { number: Some(5), ..write.clone() }), id);
        let others = [
            MemoWrite { id: ClaimId(2), ..write.clone() },
            MemoWrite { owner: Owner::new("p").unwrap(), ..write.clone() },
            MemoWrite { token: Token(8), ..write.clone() },
            MemoWrite { after: 1, ..write.clone() },
            MemoWrite { write: 2, ..write.clone() },
            MemoWrite { kind: MemoKind::Once, ..write.clone() },
            MemoWrite { keep: Some(Duration::from_secs(1)), ..write.clone() },
            MemoWrite { bytes: b"two".as_slice().into(), ..write.clone() },
        ];
        for other in others {
            assert_ne!(write_id(&name, &other), id, "{other:?}");
        }
        assert_ne!(write_id(&Name::new("y").unwrap(), &write), id);
    }
}
