-- The classic lock: SET key value NX PX ttl, and compare before anything else. The value says whose it is:
-- "tenure ID NUMBER ATTEMPT TTL OWNER AT LABEL", and no other client's can be mistaken for it.
-- ARGV: op, id, then what the op needs. Answers as in native.lua, with 0 for what this layout lacks.
local key, op, id = KEYS[1], ARGV[1], ARGV[2]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function foreign(kind)
  return {'y', 1, 0, 'a foreign client (' .. kind .. ')', math.max(redis.call('PTTL', key), 0)}
end

local function value_of(number, attempt, ttl, owner, at, label)
  return 'tenure ' .. id .. ' ' .. number .. ' ' .. attempt .. ' ' .. ttl .. ' ' .. owner .. ' ' .. at .. ' ' .. label
end

local now_text = string.format('%.0f', now)
-- Before anything is written: whoever may not look could not release either.
local kind = redis.call('TYPE', key).ok
if op == 'claim' and kind == 'none' then
  -- ttl, attempt, owner, label, and the number if it is not for this server to choose
  local value = value_of(ARGV[7] or now_text, ARGV[4], ARGV[3], ARGV[5], now_text, ARGV[6])
  if redis.call('SET', key, value, 'NX', 'PX', ARGV[3]) then
    return {'s', tonumber(ARGV[7] or now_text), tonumber(ARGV[3]), 0, 0, now}
  end
end

if op == 'show' then
  return {kind, kind == 'string' and redis.call('GET', key) or '', redis.call('PTTL', key), now}
end
if kind == 'none' then return 0 end
if kind ~= 'string' then return op == 'claim' and foreign(kind) or 0 end
local whose, number, attempt, ttl, owner, at, label =
  string.match(redis.call('GET', key), '^tenure (%x+) (%d+) (%d+) (%d+) (%S+) (%d+) (.*)$')

if whose ~= id then
  if op ~= 'claim' then return 0 end
  if not whose then return foreign('string') end
  return {'y', 1, 0, label, math.max(redis.call('PTTL', key), 0)}
end

if op == 'release' then
  if ARGV[3] ~= '' and ARGV[3] ~= number then return 0 end
  return redis.call('DEL', key)
end

-- The same claim again, or its renewal.
if op == 'claim' and owner ~= ARGV[5] then return {'y', 1, 0, label, math.max(redis.call('PTTL', key), 0)} end
local longer = tonumber(ARGV[3]) > tonumber(ttl)
local other_attempt = op == 'claim' and attempt ~= ARGV[4]
if longer then ttl = ARGV[3] end
if other_attempt then number, attempt = ARGV[7] or now_text, ARGV[4] end
redis.call('PEXPIRE', key, ttl)
if longer or other_attempt then redis.call('SET', key, value_of(number, attempt, ttl, owner, at, label), 'PX', ttl) end
return {'s', tonumber(number), tonumber(ttl), 0, 0, tonumber(at)}
