//! The statements, for one schema.

/// The server's time in microseconds. Not `now()`, which stands still within a transaction.
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// The columns that [`queue_of`](super::rows::queue_of) reads.
const ROW: &str = "name, id, number, ttl, token, block_end, granted, expires, client, queue, inboxes, last";

#[derive(Debug)]
pub(super) struct Statements {
    pub(super) claim: String,
    pub(super) release: String,
    pub(super) renew: String,
    /// Makes the rows of names that have none; as if they had just been used, so that they are not swept at once.
    pub(super) make: String,
    /// Locks rows, in the order of their names, then reads the clock and who hears.
    pub(super) lock: String,
    pub(super) write: String,
    pub(super) notify: String,
    pub(super) inspect: String,
    /// Several names, for whoever waits for them and hears nothing.
    pub(super) look: String,
    pub(super) scan: String,
    pub(super) sweep: String,
}

impl Statements {
    pub(super) fn of(schema: &str) -> Self {
        Self {
            // A free name, new or not: taken by this one statement. Names are locked in their order, here and everywhere, so that no two
            // clients wait for each other. In a row that is there, the clock is read once it is locked.
            claim: format!(
                "INSERT INTO {schema}.names AS n (name, id, number, ttl, token, block_end, granted, expires, client, last)
                 SELECT a.name, a.id, t.next, a.ttl, t.next, t.next + a.block - 1, t.now, t.now + a.ttl, a.client, t.next + a.block - 1
                 FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[]) AS a(name, id, ttl, block, client),
                      (SELECT u.now, greatest(u.now, (SELECT forgotten + 1 FROM {schema}.meta)) AS next FROM (SELECT {NOW} AS now) u) t
                 ORDER BY a.name COLLATE \"C\"
                 ON CONFLICT (name) DO UPDATE SET
                   (id, number, ttl, token, block_end, granted, expires, client, last) =
                   (SELECT excluded.id, t.next, excluded.ttl, t.next, t.next + excluded.last - excluded.token, t.now,
                           t.now + excluded.ttl, excluded.client, t.next + excluded.last - excluded.token
                    FROM (SELECT u.now, greatest(u.now, n.last + 1) AS next FROM (SELECT {NOW} AS now) u) t)
                 WHERE n.queue IS NULL AND (n.id IS NULL OR n.expires <= {NOW})
                 RETURNING n.id, n.number, n.token, n.block_end, n.granted"
            ),
            release: format!(
                "WITH locked AS MATERIALIZED (
                   SELECT name FROM {schema}.names WHERE name = ANY($1) AND queue IS NULL ORDER BY name FOR UPDATE)
                 UPDATE {schema}.names n SET id = NULL, client = NULL, expires = NULL
                 FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS a(name, id, number), locked l
                 WHERE n.name = l.name AND n.name = a.name AND n.id = a.id AND n.queue IS NULL AND (a.number IS NULL OR n.number = a.number)
                   AND n.expires > {NOW}
                 RETURNING a.id"
            ),
            renew: format!(
                "WITH locked AS MATERIALIZED (
                   SELECT name FROM {schema}.names WHERE name = ANY($1) AND queue IS NULL ORDER BY name FOR UPDATE)
                 UPDATE {schema}.names n SET ttl = greatest(n.ttl, a.ttl), expires = {NOW} + greatest(n.ttl, a.ttl)
                 FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS a(name, id, ttl), locked l
                 WHERE n.name = l.name AND n.name = a.name AND n.id = a.id AND n.queue IS NULL AND n.expires > {NOW}
                 RETURNING n.id, n.number, n.ttl, n.token, n.block_end, n.granted"
            ),
            make: format!(
                "INSERT INTO {schema}.names (name, last) SELECT a.name, (SELECT greatest(forgotten, {NOW}) FROM {schema}.meta)
                 FROM (SELECT DISTINCT unnest($1::text[])) AS a(name) ORDER BY a.name COLLATE \"C\" ON CONFLICT DO NOTHING"
            ),
            lock: format!(
                "WITH locked AS MATERIALIZED (
                   SELECT {ROW} FROM {schema}.names WHERE name = ANY($1) ORDER BY name FOR UPDATE)
                 SELECT {ROW}, {NOW} AS now,
                   ARRAY(SELECT key FROM unnest(inboxes) AS key WHERE NOT pg_try_advisory_xact_lock(key)) AS heard
                 FROM locked"
            ),
            write: format!(
                "UPDATE {schema}.names n SET id = w.id, number = w.number, ttl = w.ttl, token = w.token, block_end = w.block_end,
                   granted = w.granted, expires = w.expires, client = w.client, queue = w.queue, inboxes = w.inboxes::bigint[], last = w.last
                 FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
                   $9::bigint[], $10::text[], $11::text[], $12::text[])
                   AS w(name, id, number, ttl, token, block_end, granted, expires, last, client, queue, inboxes)
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
            // A bounded piece of the table at a time. What is forgotten was idle for a minute, and its last token is behind the clock.
            sweep: format!(
                "WITH piece AS MATERIALIZED (SELECT name FROM {schema}.names WHERE name > $1 ORDER BY name LIMIT 1000),
                 dead AS MATERIALIZED (
                   SELECT n.name FROM {schema}.names n JOIN piece USING (name)
                   WHERE ((n.id IS NULL AND n.queue IS NULL) OR n.expires < {NOW} - 60000000) AND n.last < {NOW} - 60000000
                   ORDER BY n.name FOR UPDATE OF n SKIP LOCKED),
                 gone AS (DELETE FROM {schema}.names n USING dead WHERE n.name = dead.name RETURNING n.last),
                 noted AS (UPDATE {schema}.meta SET forgotten = greatest(forgotten, (SELECT max(last) FROM gone))
                   WHERE EXISTS (SELECT FROM gone))
                 SELECT (SELECT max(name) FROM piece) AS until, (SELECT count(*) FROM gone) AS gone"
            ),
        }
    }
}

/// What makes the tables. Each statement may find its work done.
pub(super) fn tables(schema: &str, version: i32, with_schema: bool) -> String {
    let made = if with_schema { format!("CREATE SCHEMA IF NOT EXISTS {schema};") } else { String::new() };
    format!(
        "{made}
         CREATE TABLE IF NOT EXISTS {schema}.meta (version int NOT NULL, forgotten bigint NOT NULL);
         CREATE TABLE IF NOT EXISTS {schema}.names (
           name text COLLATE \"C\" PRIMARY KEY,
           id bigint, number bigint, ttl bigint, token bigint, block_end bigint, granted bigint, expires bigint, client text,
           queue text, inboxes bigint[], last bigint NOT NULL
         ) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
         INSERT INTO {schema}.meta SELECT {version}, 0 WHERE NOT EXISTS (SELECT FROM {schema}.meta);"
    )
}
