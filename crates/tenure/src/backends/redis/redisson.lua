-- Redisson's RLock: a hash with one field, UUID:NUMBER, that says who holds, and a channel its waiters listen to.
-- Ours ends in the claim's id. Its value, to Redisson a count of holds that only the holder reads, is the number
-- that tells two claims with one id apart.
-- ARGV: op, id, then what the op needs. Answers as in native.lua, with 0 for what this layout lacks.
local key, op, id = KEYS[1], ARGV[1], ARGV[2]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local kind = redis.call('TYPE', key).ok
local holder = kind == 'hash' and redis.call('HKEYS', key)[1] or ''
local left = redis.call('PTTL', key)

if op == 'show' then
  return {kind, holder, left, now, kind == 'hash' and redis.call('HGET', key, holder) or ''}
end

-- Redisson counts its holds there; ours is a number of 2^50 and more.
local ours = holder ~= '' and string.match(holder, ':(%d+)$') == id
  and tonumber(redis.call('HGET', key, holder)) >= 1125899906842624

if op == 'claim' then
  -- ttl, field, attempt
  local ttl, field, attempt = tonumber(ARGV[3]), ARGV[4], ARGV[5]
  local number = attempt == '0' and string.format('%.0f', now) or attempt
  if kind == 'none' then
    redis.call('HSET', key, field, number)
    redis.call('PEXPIRE', key, ttl)
    return {'s', tonumber(number), ttl, 0, 0, tonumber(number)}
  end
  if holder ~= field then
    local whose = kind == 'hash' and 'a Redisson client (' .. holder .. ')' or 'a foreign client (' .. kind .. ')'
    return {'y', 1, 0, whose, math.max(left, 0)}
  end
  if attempt == '0' then
    number = redis.call('HGET', key, field)
  else
    redis.call('HSET', key, field, number)
  end
  if ttl > left then redis.call('PEXPIRE', key, ttl) end
  return {'s', tonumber(number), math.max(ttl, left), 0, 0, tonumber(number)}
end

if not ours then return 0 end
local number = redis.call('HGET', key, holder)

if op == 'renew' then
  local ttl = tonumber(ARGV[3])
  if ttl > left then redis.call('PEXPIRE', key, ttl) end
  return {'s', tonumber(number), math.max(ttl, left), 0, 0, tonumber(number)}
end

-- release: number, channel
if ARGV[3] ~= '' and ARGV[3] ~= number then return 0 end
redis.call('DEL', key)
redis.pcall('PUBLISH', ARGV[4], '0')
-- Where the server shards channels, that is where Redisson listens.
redis.pcall('SPUBLISH', ARGV[4], '0')
return 1
