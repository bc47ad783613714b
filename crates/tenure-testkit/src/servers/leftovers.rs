//! What tenure left in a Redis.

use super::redis::Redis;

/// Every key `tenure:*` of every database, one a line: database, milliseconds to live, type, first byte of a string,
/// key. A script, so that it is one look; and it shows keys that would break a line.
const KEYS: &str = r"
local seen = {}
for db in string.gmatch(redis.call('info', 'keyspace'), 'db(%d+):') do
  redis.call('select', db)
  for _, key in ipairs(redis.call('keys', 'tenure:*')) do
    local kind = redis.call('type', key).ok
    local first = kind == 'string' and redis.call('getrange', key, 0, 0) or ''
    local shown = string.gsub(key, '%c', function(c) return string.format('\\x%02x', string.byte(c)) end)
    first = string.match(first, '%w') or '-'
    seen[#seen + 1] = table.concat({db, redis.call('pttl', key), kind, first, shown}, ' ')
  end
end
return seen
";

/// What a server keeps for good: the highest token it gave, and how it stands to its fleet.
const FOR_GOOD: [&str; 4] = ["tenure:last", "tenure:redlock", "tenure:redlock:last:a", "tenure:redlock:last:b"];

struct Key {
    database: String,
    ttl: i64,
    kind: String,
    first: String,
    key: String,
}

/// Every key that begins with `tenure:`, in any database, and every channel `tenure:*` that somebody listens to; but
/// neither what a server keeps for good, nor a string that begins with `f` (the record of a free name), nor memos,
/// which are there to stay.
///
/// In a cluster: of this node alone.
pub fn leftovers(redis: &Redis) -> Vec<String> {
    let is_free = |key: &Key| key.kind == "string" && key.first == "f";
    let left = |key: &Key| !(FOR_GOOD.contains(&key.key.as_str()) || is_free(key) || key.is_memo());
    let keys = keys(redis).into_iter().filter(left).map(|key| key.shown());
    let channels = ["channels", "shardchannels"].map(|what| redis.cli(&["pubsub", what, "tenure:*"]));
    let channels = channels.iter().flat_map(|said| said.lines()).filter(|line| line.starts_with("tenure:"));
    keys.chain(channels.map(|channel| format!("channel {channel}"))).collect()
}

/// Every key that begins with `tenure:`, in any database, and never expires; but for what a node of a fleet keeps for
/// good, and memos.
pub fn without_expiry(redis: &Redis) -> Vec<String> {
    keys(redis)
        .into_iter()
        .filter(|key| key.ttl == -1 && !FOR_GOOD[1..].contains(&key.key.as_str()) && !key.is_memo())
        .map(|key| key.shown())
        .collect()
}

fn keys(redis: &Redis) -> Vec<Key> {
    redis.cli(&["eval", KEYS, "0"]).lines().map(parsed).collect()
}

fn parsed(line: &str) -> Key {
    let mut fields = line.splitn(5, ' ').map(str::to_owned);
    let mut next = || fields.next().unwrap_or_else(|| panic!("cannot list the keys: {line}"));
    let (database, ttl) = (next(), next());
    let ttl = ttl.parse().unwrap_or_else(|_| panic!("cannot list the keys: {line}"));
    Key { database, ttl, kind: next(), first: next(), key: next() }
}

impl Key {
    fn is_memo(&self) -> bool {
        self.key.starts_with("tenure:{:") && self.key.ends_with("}memo")
    }

    fn shown(&self) -> String {
        let expires = if self.ttl < 0 { "never expires".to_owned() } else { format!("expires in {} ms", self.ttl) };
        format!("{} ({} in database {}, {expires})", self.key, self.kind, self.database)
    }
}
