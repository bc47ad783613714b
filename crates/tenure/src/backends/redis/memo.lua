-- Memos in Redis. The rule is `machine::write_memo`; a test holds the two together.
--
-- KEYS: the memo; and, to write it, the record of its name (see `native.lua`). Both are declared: a cluster that moves
-- the name refuses the call (TRYAGAIN) unless both are here.
-- ARGV, to write it: the claim's id, its number or nothing, its token, the version to replace, the id of the write,
-- the kind, how many us it is kept or nothing, whether a repeat is written again, the bytes.
-- Answer: the server's time in us, then: the memo or nothing, to read it; to write it {'d', version},
-- {'c', the present memo or nothing}, {'k', kind} or 0 if the claim does not hold; {'e', text} if it failed.
--
-- A memo is a string, KIND VERSION WRITE TOKEN WRITTEN UNTIL BYTES. UNTIL is "-" if it is kept for ever.

local call, guard, pcall = redis.call, pcall, redis.pcall
local sub, match, format = string.sub, string.match, string.format

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local key, record_key = KEYS[1], KEYS[2]

if not record_key then
  -- It counts as a write, so that only a master answers it.
  local memo = pcall('GETEX', key)
  if type(memo) == 'table' then memo = {'e', memo.err} end
  return {now, memo}
end

local id, number, token, after, write = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local kind, keep, again, bytes = ARGV[6], ARGV[7], ARGV[8], ARGV[9]

-- A queue of which a key is missing is on its way to another server, or partly evicted.
local function is_whole(record)
  local holders, waiters, marks = match(record, '^q %d+ %d+ %S+ %d+ (%d+) %d+ %d+ (%d+) (%d+) ')
  return call('ZCARD', record_key .. 'expiry') == holders + waiters + marks
    and call('HGET', record_key .. 'claims', call('ZRANGE', record_key .. 'expiry', 0, 0)[1] or '')
end

-- Whether the claim holds the name exclusively, with the token in its present block.
local function may_write()
  local record = call('GET', record_key)
  local tag = record and sub(record, 1, 1)
  local own, from, to, shape
  if not record or tag == 'f' then
    return false
  elseif tag == '1' or tag == 'B' then
    if sub(record, 2, 17) ~= id then return false end
    own, from, to, shape = match(record, '^(%d+) (%d+) (%d+) %d+ %S+ (%S+) ', 26)
  elseif tag == 'q' then
    local claim, dies = call('HGET', record_key .. 'claims', id), call('ZSCORE', record_key .. 'expiry', id)
    if not (claim and dies) and not is_whole(record) then
      error({err = 'TRYAGAIN the keys of this name are not all here'})
    end
    if not claim or tonumber(dies) <= math.floor(now / 1000) then return false end
    own, from, to, shape = match(claim, '^(%d+) %d+ (%d+) (%d+) %d+ %d+ %d+ %S+ (%S+) ')
  else
    error('the record is not tenure\'s')
  end
  -- The token of a claim that waits is 0.
  from, to = tonumber(from), tonumber(to)
  local has_token = from > 0 and from <= tonumber(token) and tonumber(token) <= to
  return has_token and shape == 'x' and (number == '' or number == own)
end

local function write_memo()
  local present = call('GET', key)
  local last_kind, version, last_write, ends
  if present then
    last_kind, version, last_write, ends = match(present, '^(%S+) (%d+) (%x+) %d+ %d+ (%S+) ')
    if not version then error('the memo is not tenure\'s') end
  end
  if last_write == write then
    -- WAIT looks only at the last write of its own connection.
    if again == '1' then call('SETRANGE', key, 0, sub(present, 1, 1)) end
    return {'d', version}
  end
  if not may_write() then return 0 end
  local lives = present and (ends == '-' or tonumber(ends) > now)
  if lives and last_kind ~= kind then return {'k', last_kind} end
  if (lives and version or '0') ~= after then return {'c', lives and present} end
  local next_version = now
  if version and tonumber(version) >= now then next_version = tonumber(version) + 1 end
  version = format('%.0f', next_version)
  ends = keep == '' and '-' or format('%.0f', now + keep)
  local memo = table.concat({kind, version, write, token, format('%.0f', now), ends, bytes}, ' ')
  if keep == '' then
    call('SET', key, memo)
  else
    -- The key outlives the memo by a minute: a late copy of the write still finds its id, and a clock that steps back
    -- still finds the version.
    call('SET', key, memo, 'PXAT', format('%.0f', math.ceil((now + keep) / 1000) + 60000))
  end
  return {'d', version}
end

local ok, answer = guard(write_memo)
if not ok then answer = {'e', type(answer) == 'table' and answer.err or tostring(answer)} end
return {now, answer}
