//! The statements, for one schema.

use crate::hash::fnv1a;

/// The server's time in microseconds. Not `now()`, which stands still within a transaction; and not `extract`, whose
/// decimal numbers take longer. Both factors have one type: for two types PostgreSQL would take an operator that
/// somebody put into `public`.
pub(super) const NOW: &str = "(pg_catalog.date_part('epoch', clock_timestamp()) * 1000000::float8)::bigint";

/// What a statement that may have to wait for another's insertion begins with: not longer than a second, for this
/// transaction only. A pooler would give a setting of the session to others.
const LIMITED: &str = "set_config('lock_timeout', '1000', true)";

/// Which of a queue's clients are there: they have a lock that cannot be had. It is tried for and given back at once,
/// since another one who looks for the same client would take whoever tries for the client.
const HEARD: &str = "ARRAY(SELECT key FROM pg_catalog.unnest(inboxes) AS key
                     WHERE CASE WHEN pg_try_advisory_lock(key) THEN NOT pg_advisory_unlock(key) ELSE true END)";

/// The first key of the lock that is a name's turn: "tenu".
const TURNS: i32 = 0x7465_6e75;

/// How long a name is remembered after its last grant, in microseconds: far longer than any statement whose answer a
/// client takes.
const SWEPT_AFTER: u64 = 3_600_000_000;

/// The most memos forgotten at a time: they may be large.
pub(super) const MEMOS_SWEPT: i64 = 256;

/// The columns that [`queue_of`](super::rows::queue_of) reads.
const ROW: &str = "name, id, number, ttl, token, block_end, granted, expires, client, queue, inboxes, last";

#[derive(Debug)]
pub(super) struct Statements {
    schema: String,
    pub(super) claim: String,
    pub(super) release: String,
    pub(super) renew: String,
    pub(super) take_one: String,
    pub(super) claim_one: String,
    pub(super) release_one: String,
    /// Take and free one name on a connection that is known to be direct.
    pub(super) take_direct: String,
    pub(super) release_direct: String,
    /// Makes the rows of names that have none; as if they had just been used, so that they are not swept at once.
    pub(super) make: String,
    /// Locks rows, in the order of their names, then reads the clock and who hears.
    pub(super) lock: String,
    /// The same for those that nobody else has locked; of the others nothing but that they are `there`.
    pub(super) lock_free: String,
    pub(super) write: String,
    pub(super) notify: String,
    pub(super) inspect: String,
    /// Several names, for whoever waits for them and hears nothing.
    pub(super) look: String,
    pub(super) scan: String,
    /// Names that somebody waits for.
    pub(super) waited_for: String,
    /// Some name.
    pub(super) anywhere: String,
    pub(super) sweep: String,
    pub(super) time: String,
    /// The statements of memos, and what their table is made with.
    pub(super) memos: MemoStatements,
}

/// What is read and written of memos. Their table is made with the first of them.
#[derive(Debug)]
pub(super) struct MemoStatements {
    /// The table, as `to_regclass` knows it.
    pub(super) table: String,
    pub(super) make: String,
    /// Locks the row of a name.
    pub(super) lock: String,
    /// The memo of a name, if there is one, with the clock and the highest version that is forgotten. Begun once the
    /// row is locked, it sees what the writer before has written.
    pub(super) find: String,
    pub(super) write: String,
    pub(super) sweep: String,
}

impl Statements {
    pub(super) fn of(schema: &str) -> Self {
        let taken = |row: &str| {
            format!(
                "UPDATE {schema}.names n SET (id, number, ttl, token, block_end, granted, expires, client, last) =
                   (SELECT $2::bigint, t.next, $3::bigint, t.next, t.next + $4::bigint - 1, t.now, t.now + $3, $5::text, t.next + $4 - 1
                    FROM (SELECT u.now, greatest(u.now, n.last + 1) AS next FROM (SELECT {NOW} AS now) u) t)
                 WHERE n.name = {row} AND n.queue IS NULL AND (n.id IS NULL OR n.expires <= {NOW})
                 RETURNING n.token, n.granted"
            )
        };
        let freed = |row: &str| {
            format!(
                "UPDATE {schema}.names n SET id = NULL, client = NULL, expires = NULL
                 WHERE n.name = {row} AND n.id = $2 AND n.queue IS NULL AND ($3::bigint IS NULL OR n.number = $3) AND n.expires > {NOW}
                 RETURNING 1"
            )
        };
        let unlocked_if = |condition: &str| {
            format!("(SELECT name FROM {schema}.names WHERE name = $1 AND {condition} FOR UPDATE SKIP LOCKED)")
        };
        let take_one = taken(&unlocked_if(&format!("queue IS NULL AND (id IS NULL OR expires <= {NOW})")));
        Self {
            schema: schema.to_owned(),
            // A free name, new or not: taken by this one statement. Names are locked in their order, here and
            // everywhere, so that no two clients wait for each other, and what somebody else has locked is passed
            // over. The clock is read once a row is locked.
            //
            // The token of a row that is made is read before, and the name might be made, used and swept by others
            // until then. But a client takes no answer later than `ANSWER_MAX` after it asked, and nothing is swept
            // that was granted in the last hour: so whatever token was given meanwhile is still in the row, and the
            // insertion finds it there.
            claim: format!(
                "WITH asked AS MATERIALIZED (
                   SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[]) AS a(name, id, ttl, block, client)),
                 free AS MATERIALIZED (
                   SELECT name FROM {schema}.names WHERE name = ANY($1) AND queue IS NULL AND (id IS NULL OR expires <= {NOW})
                   ORDER BY name FOR UPDATE SKIP LOCKED),
                 taken AS (
                   UPDATE {schema}.names n SET (id, number, ttl, token, block_end, granted, expires, client, last) =
                     (SELECT a.id, t.next, a.ttl, t.next, t.next + a.block - 1, t.now, t.now + a.ttl, a.client, t.next + a.block - 1
                      FROM (SELECT u.now, greatest(u.now, n.last + 1) AS next FROM (SELECT {NOW} AS now) u) t)
                   FROM asked a, free
                   WHERE n.name = free.name AND n.name = a.name AND n.queue IS NULL AND (n.id IS NULL OR n.expires <= {NOW})
                   RETURNING n.id, n.number, n.token, n.block_end, n.granted),
                 made AS (
                   INSERT INTO {schema}.names AS n (name, id, number, ttl, token, block_end, granted, expires, client, last)
                   SELECT a.name, a.id, t.next, a.ttl, t.next, t.next + a.block - 1, t.now, t.now + a.ttl, a.client, t.next + a.block - 1
                   FROM asked a,
                        (SELECT {LIMITED}, u.now, greatest(u.now, (SELECT forgotten + 1 FROM {schema}.meta)) AS next
                         FROM (SELECT {NOW} AS now) u) t
                   WHERE NOT EXISTS (SELECT FROM {schema}.names there WHERE there.name = a.name)
                   ORDER BY a.name COLLATE \"C\" ON CONFLICT DO NOTHING
                   RETURNING n.id, n.number, n.token, n.block_end, n.granted)
                 SELECT * FROM taken UNION ALL SELECT * FROM made"
            ),
            release: format!(
                "WITH locked AS MATERIALIZED (
                   SELECT name FROM {schema}.names WHERE name = ANY($1) AND queue IS NULL ORDER BY name FOR UPDATE SKIP LOCKED)
                 UPDATE {schema}.names n SET id = NULL, client = NULL, expires = NULL
                 FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS a(name, id, number), locked l
                 WHERE n.name = l.name AND n.name = a.name AND n.id = a.id AND n.queue IS NULL AND (a.number IS NULL OR n.number = a.number)
                   AND n.expires > {NOW}
                 RETURNING a.id"
            ),
            renew: format!(
                "WITH locked AS MATERIALIZED (
                   SELECT name FROM {schema}.names WHERE name = ANY($1) AND queue IS NULL ORDER BY name FOR UPDATE SKIP LOCKED)
                 UPDATE {schema}.names n
                 SET ttl = greatest(n.ttl, a.ttl), expires = greatest(n.expires, {NOW} + greatest(n.ttl, a.ttl))
                 FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS a(name, id, ttl), locked l
                 WHERE n.name = l.name AND n.name = a.name AND n.id = a.id AND n.queue IS NULL AND n.expires > {NOW}
                 RETURNING n.id, n.number, n.ttl, n.token, n.block_end, n.granted"
            ),
            // The same for one name alone, which the server does sooner; and sooner still if its row is known to be
            // there.
            take_one: take_one.clone(),
            claim_one: format!(
                "WITH taken AS ({take_one}),
                 made AS (
                   INSERT INTO {schema}.names AS n (name, id, number, ttl, token, block_end, granted, expires, client, last)
                   SELECT $1, $2, t.next, $3, t.next, t.next + $4 - 1, t.now, t.now + $3, $5, t.next + $4 - 1
                   FROM (SELECT {LIMITED}, u.now, greatest(u.now, (SELECT forgotten + 1 FROM {schema}.meta)) AS next
                         FROM (SELECT {NOW} AS now) u) t
                   WHERE NOT EXISTS (SELECT FROM {schema}.names there WHERE there.name = $1)
                   ON CONFLICT DO NOTHING
                   RETURNING n.token, n.granted)
                 SELECT * FROM taken UNION ALL SELECT * FROM made"
            ),
            release_one: freed(&unlocked_if("queue IS NULL")),
            // Where the connection's own limit sees to it that a locked row is not waited for, it need not be locked
            // first. If somebody changed the row meanwhile, the server reads it and the clock again. If he only had
            // it locked, the clock was read before: the claim is then counted from a moment after it was asked for
            // all the same, which is all that its client relies on, and what an earlier moment leaves unexpired is
            // not taken.
            take_direct: taken("$1"),
            release_direct: freed("$1"),
            // Whoever locks a row that is made here reads the clock after that.
            make: format!(
                "INSERT INTO {schema}.names (name, last)
                 SELECT a.name, t.last
                 FROM (SELECT DISTINCT pg_catalog.unnest($1::text[])) AS a(name),
                      (SELECT {LIMITED}, greatest(forgotten, {NOW}) AS last FROM {schema}.meta) t
                 WHERE NOT EXISTS (SELECT FROM {schema}.names there WHERE there.name = a.name)
                 ORDER BY a.name COLLATE \"C\" ON CONFLICT DO NOTHING"
            ),
            lock: format!(
                "WITH locked AS MATERIALIZED (
                   SELECT {ROW} FROM {schema}.names WHERE name = ANY($1) ORDER BY name FOR UPDATE)
                 SELECT {ROW}, {NOW} AS now,
                   {HEARD} AS heard
                 FROM locked"
            ),
            lock_free: format!(
                "WITH locked AS MATERIALIZED (
                   SELECT {ROW} FROM {schema}.names WHERE name = ANY($1) ORDER BY name FOR UPDATE SKIP LOCKED)
                 SELECT {ROW}, {NOW} AS now, k.there,
                   {HEARD} AS heard
                 FROM (SELECT name AS there FROM {schema}.names WHERE name = ANY($1)) k LEFT JOIN locked ON name = k.there"
            ),
            write: format!(
                "UPDATE {schema}.names n SET id = w.id, number = w.number, ttl = w.ttl, token = w.token, block_end = w.block_end,
                   granted = w.granted, expires = w.expires, last = w.last, waiters = w.waiters, client = w.client,
                   inboxes = w.inboxes::bigint[], queue = w.queue
                 FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
                   $9::bigint[], $10::bigint[], $11::text[], $12::text[], $13::bytea[])
                   AS w(name, id, number, ttl, token, block_end, granted, expires, last, waiters, client, inboxes, queue)
                 WHERE n.name = w.name"
            ),
            notify: "SELECT pg_notify(a.channel, a.message) FROM unnest($1::text[], $2::text[]) AS a(channel, message)".to_owned(),
            inspect: format!("SELECT {ROW}, {NOW} AS now FROM {schema}.names WHERE name = $1"),
            look: format!("SELECT {ROW} FROM {schema}.names WHERE name = ANY($1)"),
            scan: format!(
                "SELECT {ROW}, {NOW} AS now FROM {schema}.names
                 WHERE name >= $1 AND name > $2 AND starts_with(name, $1) AND (queue IS NOT NULL OR id IS NOT NULL)
                 ORDER BY name LIMIT $3"
            ),
            // No index: one over how many wait would make each change of that a new entry in every index. The server
            // reads the table, and sends only these.
            waited_for: format!(
                "SELECT {ROW}, {NOW} AS now FROM {schema}.names WHERE waiters > 0 AND name > $1 ORDER BY name LIMIT $2"
            ),
            anywhere: format!("SELECT name FROM {schema}.names TABLESAMPLE SYSTEM (1) LIMIT 1"),
            // A bounded piece of the table at a time. What is forgotten was granted an hour ago at least, by the
            // clock of tokens and of claims.
            sweep: format!(
                "WITH piece AS MATERIALIZED (
                   SELECT name FROM {schema}.names, (SELECT {LIMITED}) limited WHERE name > $1 ORDER BY name LIMIT 1000),
                 dead AS MATERIALIZED (
                   SELECT n.name FROM {schema}.names n JOIN piece USING (name)
                   WHERE ((n.id IS NULL AND n.queue IS NULL) OR n.expires < {NOW} - {SWEPT_AFTER}) AND n.last < {NOW} - {SWEPT_AFTER}
                   ORDER BY n.name FOR UPDATE OF n SKIP LOCKED),
                 gone AS (DELETE FROM {schema}.names n USING dead WHERE n.name = dead.name RETURNING n.last),
                 noted AS (UPDATE {schema}.meta SET forgotten = greatest(forgotten, (SELECT max(last) FROM gone))
                   WHERE EXISTS (SELECT FROM gone))
                 SELECT (SELECT max(name) FROM piece) AS until, (SELECT count(*) FROM gone) AS gone"
            ),
            time: format!("SELECT {NOW} AS now"),
            memos: MemoStatements::of(schema),
        }
    }
}

impl MemoStatements {
    fn of(schema: &str) -> Self {
        Self {
            table: format!("{schema}.memos"),
            // Bytes are not compressed, as a queue is not. Of two that make the table the second finds it.
            make: format!(
                "CREATE TABLE IF NOT EXISTS {schema}.memos (
                   name text COLLATE \"C\" PRIMARY KEY, kind text NOT NULL, token bigint NOT NULL, version bigint NOT NULL,
                   write_id bigint NOT NULL, written bigint NOT NULL, ends bigint, bytes bytea NOT NULL);
                 ALTER TABLE {schema}.memos ALTER COLUMN bytes SET STORAGE EXTERNAL;
                 CREATE INDEX IF NOT EXISTS memos_by_end ON {schema}.memos (ends) WHERE ends IS NOT NULL;"
            ),
            lock: format!("SELECT {ROW} FROM {schema}.names WHERE name = $1 FOR UPDATE"),
            find: format!(
                "SELECT {NOW} AS now, t.forgotten, m.kind, m.token, m.version, m.write_id, m.written, m.ends, m.bytes
                 FROM {schema}.meta t LEFT JOIN {schema}.memos m ON m.name = $1"
            ),
            write: format!(
                "INSERT INTO {schema}.memos AS m (name, kind, token, version, write_id, written, ends, bytes)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
                 ON CONFLICT (name) DO UPDATE SET (kind, token, version, write_id, written, ends, bytes) =
                   (excluded.kind, excluded.token, excluded.version, excluded.write_id, excluded.written, excluded.ends, excluded.bytes)"
            ),
            // The clock is read once, by itself: for what may change from row to row no index is used.
            sweep: format!(
                "WITH ended AS MATERIALIZED (
                   SELECT m.name FROM {schema}.memos m, (SELECT {LIMITED}) limited WHERE m.ends <= (SELECT {NOW})
                   ORDER BY m.ends LIMIT {MEMOS_SWEPT} FOR UPDATE OF m SKIP LOCKED),
                 gone AS (DELETE FROM {schema}.memos m USING ended WHERE m.name = ended.name RETURNING m.version),
                 noted AS (UPDATE {schema}.meta SET forgotten = greatest(forgotten, (SELECT max(version) FROM gone))
                   WHERE EXISTS (SELECT FROM gone))
                 SELECT count(*) FROM gone"
            ),
        }
    }
}

impl Statements {
    /// Waits for one's turn with a name until the transaction ends. Whoever waits for a row itself is not served in
    /// order: with each change the row becomes another one, for which all that waited queue up anew, behind those who
    /// came later.
    ///
    /// The two keys are of another kind than the one that a client's lock has. Names whose keys are alike share their
    /// turns.
    pub(super) fn turn(&self, name: &str) -> String {
        let hash = fnv1a(self.schema.bytes().chain([0]).chain(name.bytes()));
        let key = (hash ^ hash >> 32) as u32;
        format!("SELECT pg_catalog.pg_advisory_xact_lock({TURNS}, {})", key.cast_signed())
    }
}

/// What makes the tables. Each statement may find its work done. A queue is not compressed: it is short as it is, and
/// to compress a long one takes longer than all the rest of a transaction.
pub(super) fn tables(schema: &str, version: i32, with_schema: bool) -> String {
    let made = if with_schema { format!("CREATE SCHEMA IF NOT EXISTS {schema};") } else { String::new() };
    format!(
        "{made}
         CREATE TABLE IF NOT EXISTS {schema}.meta (version int NOT NULL, forgotten bigint NOT NULL);
         CREATE UNIQUE INDEX IF NOT EXISTS meta_one ON {schema}.meta ((true));
         CREATE TABLE IF NOT EXISTS {schema}.names (
           name text COLLATE \"C\" PRIMARY KEY,
           id bigint, number bigint, ttl bigint, token bigint, block_end bigint, granted bigint, expires bigint, client text,
           waiters bigint, queue bytea, inboxes bigint[], last bigint NOT NULL
         ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
         ALTER TABLE {schema}.names ALTER COLUMN queue SET STORAGE EXTERNAL;
         INSERT INTO {schema}.meta SELECT {version}, 0 WHERE NOT EXISTS (SELECT FROM {schema}.meta);"
    )
}
