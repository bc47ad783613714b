//! The statements of a fence in an SQL database, for PostgreSQL and SQLite alike, whatever client runs them.
//!
//! Each resource has a row in [`TABLE`], which is never deleted: it outlives what it protects, or a stale holder could
//! make the resource anew. Run [`WRITE`] or [`READ`] in the transaction of the effect, before the effect. **If it
//! returns no row the operation is refused**: roll back. The first operation on a resource inserts its row and returns
//! it, so it is told apart from a stale one.
//!
//! All of them take the resource's name (`$1`), the token (`$2`) and the owner's hash (`$3`), in this order.
//!
//! The row stays locked until the transaction ends, so a newer holder waits for an older one's effect, and goes on
//! after it. In PostgreSQL this holds at every isolation level; above `READ COMMITTED` a conflict is a serialization
//! failure, to be tried again.

/// Makes the table of fences. Run it once, as a migration.
pub const TABLE: &str = "\
CREATE TABLE IF NOT EXISTS tenure_fence (
    resource     TEXT PRIMARY KEY,
    token        BIGINT NOT NULL, -- the highest accepted, and of whom
    owner        TEXT NOT NULL,
    writer_token BIGINT,          -- the highest of an exclusive holder, and of whom
    writer_owner TEXT
)";

/// Accepts an exclusive holder: above the highest token accepted, or equal with the same owner.
pub const WRITE: &str = "\
INSERT INTO tenure_fence AS fence (resource, token, owner, writer_token, writer_owner)
VALUES ($1, $2, $3, $2, $3)
ON CONFLICT (resource) DO UPDATE SET
    token = excluded.token, owner = excluded.owner, writer_token = excluded.token, writer_owner = excluded.owner
WHERE excluded.token > fence.token OR (excluded.token = fence.token AND excluded.owner = fence.owner)
RETURNING token";

/// Accepts a shared holder: above the highest token of an exclusive one, or equal with the same owner. It keeps out
/// exclusive holders that are older, so **commit before you act on what was read**.
pub const READ: &str = "\
INSERT INTO tenure_fence AS fence (resource, token, owner)
VALUES ($1, $2, $3)
ON CONFLICT (resource) DO UPDATE SET
    token = CASE WHEN excluded.token > fence.token THEN excluded.token ELSE fence.token END,
    owner = CASE WHEN excluded.token > fence.token THEN excluded.owner ELSE fence.owner END
WHERE fence.writer_token IS NULL OR excluded.token > fence.writer_token
    OR (excluded.token = fence.writer_token AND excluded.owner = fence.writer_owner)
RETURNING token";

/// Returns the token that stands against an exclusive holder, if there is one by now. Changes nothing.
pub const LOOK_WRITE: &str = "\
SELECT token FROM tenure_fence
WHERE resource = $1 AND (token > $2 OR (token = $2 AND owner <> $3))";

/// Returns the token that stands against a shared holder, if there is one by now. Changes nothing.
pub const LOOK_READ: &str = "\
SELECT writer_token FROM tenure_fence
WHERE resource = $1 AND (writer_token > $2 OR (writer_token = $2 AND writer_owner <> $3))";

/// What accepts this fence, and what looks whether anything stands against it.
#[cfg(any(feature = "fence-postgres", feature = "fence-sqlite"))]
pub(super) fn statements(fence: &super::Fence) -> (&'static str, &'static str) {
    match fence.writer() {
        Ok(_) => (WRITE, LOOK_WRITE),
        Err(_) => (READ, LOOK_READ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_on_fencing_has_the_statements_for_other_languages() {
        let page = include_str!("../../../../docs/fencing.md");
        for statement in [TABLE, WRITE, READ] {
            assert!(page.contains(statement), "{statement}");
        }
    }
}
