-- One node of a fleet. `ballot.rs` has the rule in Rust; a test holds the two together.
--
-- KEYS: the node's own hash, two hashes of last tokens, then one record per operation.   ARGV: the highest token that
-- is proposed here, the node that is meant, then the operations.   Answer: the node's time in us, then one answer per
-- operation.
--
-- The hashes of last tokens: "TOKEN ID" by record; without the id once that claim has ended.
-- The node's own hash: node, fleet, size (if it takes part) or blank (names the time since it does not); floor;
-- young (which of the two hashes is written), since (when it began), top_a and top_b (what is highest in each); ttl;
-- founders (what all nodes of the fleet called their blank times when it began).
-- A record is a string that expires with its claim:
--   -ID TOKEN TTL NUMBER INBOX OWNER LABEL   ("w" for "-": somebody waits)
--   rID UNTIL                                free, and until then (in us) kept for this waiter, who was told
-- Beside it, while somebody waits: RECORDwaiters, claim ids by the time since when they wait, and RECORDinboxes, where
-- they listen and who they are; for a broken claim RECORDbroken:ID, by whom and why. Whether somebody waits can be seen
-- from the record, so that a name that nobody waits for costs no look.

local call, try = redis.call, redis.pcall
local sub, match, format = string.sub, string.match, string.format

local AHEAD_MAX = 10000000 -- us: a token may be this far ahead of the clock
local PERIOD = 30000000 -- us: an idle name's last token is kept one to two of these
local WAITERS_MAX = 5000 -- ms: a waiter that has not asked for so long is forgotten
local RESERVED = 50000 -- us: for so long a free name is kept for the waiter that was told
local TOLD_MAX = 8 -- how many waiters are tried in one go

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local now_text = format('%.0f', now)
local own = KEYS[1]
local said = call('HMGET', own, 'node', 'floor', 'young', 'since', 'top_a', 'top_b', 'ttl')
local member, floor, young, since = said[1], tonumber(said[2] or 0), said[3], tonumber(said[4] or 0)
local top_a, top_b, ttl_max = tonumber(said[5] or 0), tonumber(said[6] or 0), tonumber(said[7] or 0)

if member and (now >= since + PERIOD or now < since) then
  if now >= since then
    -- What is dropped is above no floor.
    local dropped = young == 'a' and top_b or top_a
    if dropped > floor then floor = dropped end
    call('HSET', own, 'floor', format('%.0f', floor))
    call('UNLINK', young == 'a' and KEYS[3] or KEYS[2])
    if young == 'a' then young, top_b = 'b', 0 else young, top_a = 'a', 0 end
    call('HSET', own, 'young', young, 'top_' .. young, 0)
  end
  call('HSET', own, 'since', now_text)
end
local young_key, old_key = KEYS[2], KEYS[3]
if young == 'b' then young_key, old_key = old_key, young_key end

-- Written before any token below it is stored, once for all of them: it may be too high, never too low.
local function cover(token)
  if token <= (young == 'b' and top_b or top_a) then return end
  if young == 'b' then top_b = token else top_a = token end
  call('HSET', own, 'top_' .. young, format('%.0f', token))
end
-- Another server than the one that is meant has no vote: its address may have been given away.
local stranger = member and ARGV[2] ~= '' and ARGV[2] ~= member
local highest = tonumber(ARGV[1])
if member and not stranger and highest > 0 and highest <= now + AHEAD_MAX then cover(highest) end

-- The last token of a name, and whose it is if that claim has not ended.
local function last_of(key)
  local last = call('HGET', young_key, key) or call('HGET', old_key, key)
  if not last then return floor end
  return tonumber(match(last, '^%d+')), match(last, ' (%x+)$')
end

-- Whether this token may be stored for this claim: nothing, or why not.
local function refusal(key, token, id)
  local last, whose = last_of(key)
  -- A claim that has run out here and that nobody followed may go on.
  if token == last and id and whose == id then return end
  if token <= last then return {'l', last} end
  if token > last + 1 and token > now + AHEAD_MAX then return 'a' end
end

local function remember(key, token, text)
  cover(token)
  call('HSET', young_key, key, text)
end

-- A request of this claim, up to this token, that comes later is refused.
local function bar(key, id, text)
  local last, whose = last_of(key)
  local token = tonumber(text)
  if whose == id and (not token or last <= token) then remember(key, last, format('%.0f', last)) end
  if token and not refusal(key, token) then remember(key, token, text) end
end

-- What is in use does not grow old.
local function keep(key)
  if call('HGET', young_key, key) then return end
  local last = call('HGET', old_key, key)
  if last then remember(key, tonumber(match(last, '^%d+')), last) end
end

local function note_ttl(ttl)
  if ttl <= ttl_max then return end
  ttl_max = ttl
  call('HSET', own, 'ttl', ttl)
end

local function forget_waiter(key, id)
  if call('ZREM', key .. 'waiters', id) == 1 then call('HDEL', key .. 'inboxes', id) end
end

-- Lets a claim wait: it keeps its place as long as it asks now and then. WAITS is the time since when it waits.
local function wait(key, id, waits, client)
  call('ZADD', key .. 'waiters', 'NX', waits, id)
  call('HSET', key .. 'inboxes', id, client)
  call('PEXPIRE', key .. 'waiters', WAITERS_MAX)
  call('PEXPIRE', key .. 'inboxes', WAITERS_MAX)
end

-- Stores a token for a claim, or says why not.
local function store(key, listed, id, text, ttl, number, client)
  local token = tonumber(text)
  local refused = refusal(key, token, id)
  if refused then return refused end
  note_ttl(tonumber(ttl))
  remember(key, token, text .. ' ' .. id)
  local mark = '-'
  if listed then
    forget_waiter(key, id)
    if call('EXISTS', key .. 'waiters') == 1 then mark = 'w' end
  end
  if number == '0' then number = text end
  call('SET', key, mark .. id .. ' ' .. text .. ' ' .. ttl .. ' ' .. number .. ' ' .. client, 'PX', ttl)
end

local RECORD = '^.%x+ (%d+) (%d+) (%d+) (.*)$'

-- Prolongs a claim. A shorter ttl keeps the longer one; another attempt with the same id gets a number of its own.
local function prolong(key, record, ttl, number)
  local token, before, had, client = match(record, RECORD)
  local longer = tonumber(ttl) > tonumber(before)
  if not longer then ttl = before end
  note_ttl(tonumber(ttl))
  if number == '0' then number = had end
  if longer or number ~= had then
    call('SET', key, sub(record, 1, 17) .. ' ' .. token .. ' ' .. ttl .. ' ' .. number .. ' ' .. client, 'PX', ttl)
  else
    call('PEXPIRE', key, ttl)
  end
  return {'m', token, ttl, number}
end

local function name_of(key)
  return sub(key, #own + 4, -2)
end

-- Tells the one who waits longest that it may try, and keeps the name for it for a moment. Who that is, if anybody
-- hears it; `me` need not be told. BEFORE is the token of the claim that ended: the same on all nodes.
local function hand_on(key, before, me)
  for _ = 1, TOLD_MAX do
    local first = call('ZRANGE', key .. 'waiters', 0, 0)[1]
    if not first or first == me then return first end
    local inbox = match(call('HGET', key .. 'inboxes', first) or '', '^%S+')
    if inbox and call('PUBLISH', inbox, 'h ' .. first .. ' ' .. before .. ' ' .. name_of(key)) > 0 then
      call('SET', key, 'r' .. first .. ' ' .. format('%.0f', now + RESERVED), 'PX', WAITERS_MAX)
      return first
    end
    forget_waiter(key, first)
  end
end

-- Frees a name: for the next in line, or for everybody.
local function free(key, kind, record)
  local before = kind ~= 'r' and match(record, '^%S+ (%d+)') or '0'
  if kind == '-' or not hand_on(key, before) then call('DEL', key) end
end

local function broken(key, id)
  local mark = call('GET', key .. 'broken:' .. id)
  if not mark then return 0 end
  local length, rest = match(mark, '^(%d+) (.*)$')
  return {'b', sub(rest, 1, length), sub(rest, length + 1)}
end

local answers, count, arg, key_index = {now}, 1, 3, 3
while arg <= #ARGV do
  local op, id = ARGV[arg], ARGV[arg + 1]
  key_index = key_index + 1
  local key = KEYS[key_index]
  local answer, record, kind, whose
  if op ~= 'h' and op ~= 'a' then
    record = try('GET', key)
    if type(record) == 'table' then
      answer = {'e', record.err}
    elseif record then
      kind, whose = sub(record, 1, 1), sub(record, 2, 17)
    end
  end
  if stranger and op ~= 'h' and op ~= 'a' then answer = 'x' end
  local mine = kind and kind ~= 'r' and whose == id

  if op == 'c' then
    -- claim: id, token, ttl, whether another was proposed before (1) and it may be listed here as waiting (2), number,
    -- INBOX OWNER LABEL, since when it waits
    local text, ttl, anew, number, client, waits =
      ARGV[arg + 2], ARGV[arg + 3], ARGV[arg + 4], ARGV[arg + 5], ARGV[arg + 6], ARGV[arg + 7]
    if answer then
      -- not ours to touch
    elseif not member then
      answer = 'n'
    elseif kind and whose ~= id then
      if waits ~= '' then wait(key, id, waits, client) end
      if kind == 'r' and now >= tonumber(sub(record, 19)) then
        -- Whoever was told has missed its turn.
        forget_waiter(key, whose)
        local first = hand_on(key, '0', id)
        if not first or first == id then answer = store(key, true, id, text, ttl, number, client) or 1 end
      elseif kind == '-' and waits ~= '' then
        call('SETRANGE', key, 0, 'w')
      end
      if not answer then
        local left = kind == 'r' and WAITERS_MAX or call('PTTL', key)
        answer = {'y', 1, 0, match(record, '^%S+ %d+ %d+ %d+ %S+ %S+ (.*)$') or 'the next in line', left > 0 and left or 0}
      end
    elseif mine and (anew == '0' or match(record, '^%S+ (%d+)') == text) then
      answer = prolong(key, record, ttl, number)
    else
      answer = store(key, kind or anew == '2', id, text, ttl, number, client) or 1
    end
    arg = arg + 8
  elseif op == 'r' then
    -- renewal: id, token or nothing, ttl, number, INBOX OWNER LABEL (or nothing, if it is not to be put back)
    local text, ttl = ARGV[arg + 2], ARGV[arg + 3]
    if answer then
      -- not ours to touch
    elseif not member then
      answer = 'n'
    elseif mine and (text == '' or match(record, '^%S+ (%d+)') == text) then
      keep(key)
      answer = prolong(key, record, ttl, '0')
    elseif not kind and text ~= '' and ARGV[arg + 5] ~= '' and not store(key, false, id, text, ttl, ARGV[arg + 4], ARGV[arg + 5]) then
      -- Missed so far, and nobody had it since.
      answer = {'m', text, ttl, ARGV[arg + 4] == '0' and text or ARGV[arg + 4]}
    else
      answer = broken(key, id)
    end
    arg = arg + 6
  elseif op == 'd' then
    -- release: id, token or nothing, number or nothing, whether it waits here and gives that up ("1"), nothing but that
    -- ("2"), or goes on waiting since when, INBOX OWNER LABEL
    local text, number, waits = ARGV[arg + 2], ARGV[arg + 3], ARGV[arg + 4]
    if answer then
      -- not ours to touch
    elseif not member then
      answer = 0
    elseif mine and waits ~= '2' and (number == '' or match(record, '^%S+ %d+ %d+ (%d+)') == number)
      -- a later attempt of the same claim is not this one's to end
      and (text == '' or tonumber(match(record, '^%S+ (%d+)')) <= tonumber(text)) then
      bar(key, id, text)
      if waits == '1' then
        forget_waiter(key, id)
      elseif waits ~= '' then
        wait(key, id, waits, ARGV[arg + 5])
        kind = 'w'
      end
      free(key, kind, record)
      answer = 1
    else
      if waits == '1' or waits == '2' then
        forget_waiter(key, id)
        if kind == 'r' and whose == id then free(key, kind, record) end
      end
      if waits ~= '2' and not mine then bar(key, id, text) end
      answer = broken(key, id)
    end
    arg = arg + 6
  elseif op == 'k' then
    -- break: id, by whom and why, the highest token that is meant or nothing
    if answer then
      -- not ours to touch
    elseif not member then
      answer = 'n'
    elseif mine and (ARGV[arg + 3] == '' or tonumber(match(record, '^%S+ (%d+)')) <= tonumber(ARGV[arg + 3])) then
      local left, why = call('PTTL', key), ARGV[arg + 2]
      local _, _, number, client = match(record, RECORD)
      call('SET', key .. 'broken:' .. id, why, 'PX', left > 1000 and left or 1000)
      bar(key, id, '')
      call('PUBLISH', match(client, '^%S+'), 'b ' .. id .. ' ' .. number .. ' ' .. why)
      free(key, kind, record)
      answer = 1
    else
      answer = 0
    end
    arg = arg + 4
  elseif op == 's' then
    -- show
    if not answer then
      answer = {record or '', call('PTTL', key), {}, {}}
      if kind == 'w' or kind == 'r' then
        answer[3] = call('ZRANGE', key .. 'waiters', 0, 999, 'WITHSCORES')
        answer[4] = call('HGETALL', key .. 'inboxes')
      end
    end
    arg = arg + 2
  elseif op == 'h' then
    -- hello: what to call the time since it is blank, should it have no name
    if not member then call('HSETNX', own, 'blank', id) end
    local top = top_a > top_b and top_a or top_b
    local more = call('HMGET', own, 'fleet', 'size', 'blank', 'founders')
    answer = {member or '', more[1] or '', more[2] or '0', not member and more[3] or '',
      format('%.0f', top > floor and top or floor), ttl_max, more[4] or ''}
    arg = arg + 2
  else
    -- admission: the name of the blank time, the floor or nothing, fleet, node, size, founders
    if not member and call('HGET', own, 'blank') == id then
      local from = ARGV[arg + 2]
      if from == '' then from = now_text end
      member, floor, young = ARGV[arg + 4], tonumber(from), 'a'
      call('HSET', own, 'node', member, 'fleet', ARGV[arg + 3], 'size', ARGV[arg + 5], 'floor', from,
        'young', young, 'since', now_text, 'top_a', 0, 'top_b', 0, 'founders', ARGV[arg + 6])
      call('HDEL', own, 'blank')
      call('DEL', KEYS[2], KEYS[3])
      young_key, old_key = KEYS[2], KEYS[3]
    end
    answer = member and 1 or 0
    arg = arg + 7
  end
  count = count + 1
  answers[count] = answer
end
return answers
