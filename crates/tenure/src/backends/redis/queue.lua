-- The queue of claims: the rule of `machine::apply`, over Redis keys. Put into `native.lua` where it says so, and run
-- only when an operation is not the plain case. `now`, `now_ms`, `now_text`, `above`, `last` and `per_server` are its.

-- The next token or append number above what this name was given so far.
local function beyond(name_last)
  local token = name_last
  if last > token then token = last end
  if above > token then token = above end
  return token + 1
end

local FRONT = -4503599627370496
local heard = {}
-- Of the operation under way: whose request it is, who is granted by it, and which of those are not to be told.
local own, news, untold

-- Whoever asks is there to hear the answer.
local function begin(id, next_id)
  own, news, untold = {}, {}, {}
  if id then own[id] = true end
  if next_id then own[next_id] = true end
end

local function claim_of(id, text)
  local number, ttl, token, block_end, at, appended, skipped, owner, shape, block, flags, attempt, inbox, rest =
    match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (%d+) (%S+) (%d+) (%S+) (.*)$')
  local claim = {
    id = id, number = tonumber(number), ttl = tonumber(ttl), token = tonumber(token), block_end = tonumber(block_end),
    at = at, appended = appended, skipped = tonumber(skipped), owner = owner, shape = shape, block = tonumber(block),
    flags = flags, attempt = attempt, inbox = inbox, rest = rest,
  }
  claim.kind = sub(shape, 1, 1)
  claim.units = tonumber(match(shape, '^p(%d+)/') or 0)
  claim.of = tonumber(match(shape, '/(%d+)$') or 0)
  claim.solo = string.find(flags, 'o', 1, true) ~= nil
  claim.strict = string.find(flags, 's', 1, true) ~= nil
  return claim
end

local function client_of(claim)
  return claim.owner .. ' ' .. claim.shape .. ' ' .. claim.block .. ' ' .. claim.flags .. ' ' .. claim.attempt
    .. ' ' .. claim.inbox .. ' ' .. claim.rest
end

local function text_of(claim)
  return format('%.0f %.0f %.0f %.0f ', claim.number, claim.ttl, claim.token, claim.block_end) .. claim.at
    .. ' ' .. claim.appended .. ' ' .. claim.skipped .. ' ' .. client_of(claim)
end

-- A request as a claim that was not appended yet.
local function request_of(id, ttl, client)
  return claim_of(id, '0 ' .. ttl .. ' 0 0 0 ' .. now_text .. ' 0 ' .. client)
end

local function label_of(claim)
  local within, rest = match(claim.rest, '^(%d+) (.*)$')
  for _ = 1, tonumber(within) do rest = match(rest, '^%S+ (.*)$') end
  return rest
end

-- The claim of a record that holds one.
local function single(record)
  local id, ttl = sub(record, 2, 17), tonumber(sub(record, 18, 25))
  local number, token, block_end, at, client = match(record, '^(%d+) (%d+) (%d+) (%d+) (.*)$', 26)
  return claim_of(id, number .. ' ' .. ttl .. ' ' .. token .. ' ' .. block_end .. ' ' .. at .. ' ' .. at .. ' 0 ' .. client)
end

local function write_single(key, claim, blocks)
  call('PEXPIRE', key, claim.ttl) -- as in `dirty`
  call('SET', key, (blocks and 'B' or '1') .. claim.id .. format('%08d%.0f %.0f %.0f ', claim.ttl, claim.number,
    claim.token, claim.block_end) .. claim.at .. ' ' .. client_of(claim), 'PX', claim.ttl)
end

local function granted(claim)
  return {'s', claim.number, claim.ttl, claim.token, claim.block_end, tonumber(claim.at)}
end

local function covers(held, asked)
  return (held == 'x' and (asked == 'x' or asked == 's')) or (held == 's' and asked == 's')
end

-- ---- the queue ----

local function blank(key)
  return {
    key = key, claims = key .. 'claims', order = key .. 'order', expiry = key .. 'expiry', last = 0, until_ms = 0,
    seq = 0, grants = 0, holders = 0, exclusive = 0, units = 0, waiters = 0, marks = 0, mode = '-', sweep_at = 0,
    blocks = false, front = '-', front_label = '', kept = 0,
  }
end

local function load(key, record)
  local queue = blank(key)
  local text = {match(record,
    '^q (%d+) (%d+) (%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%d+) (%d) (%d+) (%S+) (.*)$')}
  queue.last, queue.until_ms, queue.seq = tonumber(text[1]), tonumber(text[2]), tonumber(text[3])
  queue.grants, queue.holders, queue.exclusive = tonumber(text[4]), tonumber(text[5]), tonumber(text[6])
  queue.units, queue.waiters, queue.marks = tonumber(text[7]), tonumber(text[8]), tonumber(text[9])
  queue.mode, queue.sweep_at, queue.blocks = text[10], tonumber(text[11]), text[12] == '1'
  queue.kept, queue.front, queue.front_label = tonumber(text[13]), text[14], text[15]
  return queue
end

-- The keys live a little longer than the last claim, so that not every renewal has to touch all of them.
local function lives_until(queue, expires, ttl)
  if expires > queue.until_ms then
    queue.until_ms = expires + math.floor(ttl / 2)
    queue.touch = true
  end
  if queue.sweep_at == 0 or expires < queue.sweep_at then queue.sweep_at = expires end
  if ttl > queue.kept then queue.kept = ttl end
end

local function save(queue)
  local live = queue.holders + queue.waiters + queue.marks
  if live == 0 then
    -- One by one: a cluster that is moving a name refuses a command of which some keys are not there.
    call('DEL', queue.claims)
    call('DEL', queue.order)
    call('DEL', queue.expiry)
    if queue.blocks or not per_server then
      call('SET', queue.key, format('f%.0f', queue.last), 'PX', queue.kept + 60000)
    else
      call('DEL', queue.key)
      if queue.last > last then last = queue.last end
    end
    return
  end
  local text = format('q %.0f %.0f %.17g %.0f %d %d %.0f %d %d %s %.0f %d %.0f %s %s', queue.last, queue.until_ms,
    queue.seq, queue.grants, queue.holders, queue.exclusive, queue.units, queue.waiters, queue.marks, queue.mode,
    queue.sweep_at, queue.blocks and 1 or 0, queue.kept, queue.front, queue.front_label)
  if queue.touch then
    -- At one moment: what is left of one key must not meet the next queue of the name.
    call('SET', queue.key, text, 'PXAT', queue.until_ms)
    call('PEXPIREAT', queue.claims, queue.until_ms)
    call('PEXPIREAT', queue.order, queue.until_ms)
    call('PEXPIREAT', queue.expiry, queue.until_ms)
  else
    call('SET', queue.key, text, 'KEEPTTL')
  end
end

local function get(queue, id)
  local text = call('HGET', queue.claims, id)
  return text and claim_of(id, text)
end

local function put(queue, claim)
  call('HSET', queue.claims, claim.id, text_of(claim))
end

-- The ids of an owner's claims that hold ("h") or wait ("w"). Not kept for claims that nobody may re-enter.
local function ids_of(queue, which, owner)
  local ids = {}
  for id in string.gmatch(call('HGET', queue.claims, which .. owner) or '', '%S+') do ids[#ids + 1] = id end
  return ids
end

local function index(queue, which, claim, add)
  if claim.solo then return end
  local kept = {}
  for _, id in ipairs(ids_of(queue, which, claim.owner)) do
    if id ~= claim.id then kept[#kept + 1] = id end
  end
  if add then kept[#kept + 1] = claim.id end
  if #kept == 0 then
    call('HDEL', queue.claims, which .. claim.owner)
  else
    call('HSET', queue.claims, which .. claim.owner, table.concat(kept, ' '))
  end
end

local function count_holder(queue, claim, by)
  queue.holders = queue.holders + by
  queue.units = queue.units + by * claim.units
  if claim.kind == 'x' then queue.exclusive = queue.exclusive + by end
end

-- The id of the first claim.
local function front_of(queue)
  if queue.front == '?' then
    queue.front = call('ZRANGE', queue.order, 0, 0)[1]
    local first = get(queue, queue.front)
    queue.front_label, queue.front_ttl = label_of(first), first.ttl
  end
  return queue.front
end

local function remove(queue, claim)
  call('ZREM', queue.order, claim.id)
  call('ZREM', queue.expiry, claim.id)
  call('HDEL', queue.claims, claim.id)
  untold[claim.number] = true
  if claim.token > 0 then
    index(queue, 'h', claim, false)
    count_holder(queue, claim, -1)
  else
    index(queue, 'w', claim, false)
    queue.waiters = queue.waiters - 1
  end
  if queue.holders + queue.waiters == 0 then
    queue.mode, queue.front, queue.front_label, queue.front_ttl = '-', '-', '', nil
  elseif claim.id == queue.front then
    -- Looked up when it is needed: mostly the next is granted at once.
    queue.front, queue.front_ttl = '?', nil
  end
end

-- `at_once` if it is granted in the same breath.
local function append(queue, claim, expires, at_once)
  -- Used again after a break: what is told of it from now on is about this one.
  if queue.marks > 0 and call('HDEL', queue.claims, 'm' .. claim.id) == 1 then
    call('ZREM', queue.expiry, 'm' .. claim.id)
    queue.marks = queue.marks - 1
  end
  claim.number = beyond(queue.last)
  queue.last = claim.number
  claim.appended = now_text
  queue.seq = queue.seq + 1
  queue.waiters = queue.waiters + 1
  if queue.mode == '-' then queue.mode = claim.kind == 'p' and '/' .. claim.of or 'x' end
  if queue.holders + queue.waiters == 1 then
    queue.front, queue.front_label = claim.id, label_of(claim)
    -- Keys that were empty are new now, and would live for ever.
    queue.touch = true
  end
  put(queue, claim)
  call('ZADD', queue.order, format('%.17g', queue.seq), claim.id)
  call('ZADD', queue.expiry, expires, claim.id)
  if not at_once then index(queue, 'w', claim, true) end
  lives_until(queue, expires, claim.ttl)
end

local function expires_of(claim)
  return now_ms + 1 + claim.ttl
end

local function take(queue, count)
  local token = beyond(queue.last)
  return token, token + count - 1
end

-- A block is remembered with its name, lest many of them push all tokens ahead of the clock; unless the clock will
-- not have passed it when the name may be forgotten.
local function given(block_end, ttl, with_name)
  if per_server and block_end > last and (not with_name or block_end > now + ttl * 1000) then last = block_end end
end

local function taken(queue, token, block_end, ttl)
  queue.last = block_end
  if block_end > token then queue.blocks = true end
  given(block_end, ttl, block_end > token)
end

-- A waiting claim holds from now on; it stands behind the other holders.
local function grant(queue, claim, token, block_end, at_once)
  claim.token, claim.block_end, claim.at = token, block_end, now_text
  queue.grants = queue.grants + 1
  queue.waiters = queue.waiters - 1
  if queue.holders == 0 then
    queue.front, queue.front_label, queue.front_ttl = claim.id, label_of(claim), claim.ttl
  end
  call('ZADD', queue.order, format('%.0f', FRONT + queue.grants), claim.id)
  put(queue, claim)
  if not at_once then index(queue, 'w', claim, false) end
  index(queue, 'h', claim, true)
  count_holder(queue, claim, 1)
end

local function hears(claim)
  if own[claim.id] then return true end
  if heard[claim.inbox] == nil then
    heard[claim.inbox] = tonumber(call('PUBSUB', 'NUMSUB', claim.inbox)[2]) > 0
  end
  return heard[claim.inbox]
end

local function re_entered(queue, owner, kind)
  for _, id in ipairs(ids_of(queue, 'h', owner)) do
    local held = get(queue, id)
    if covers(held.kind, kind) then return held end
  end
end

local function fits(queue, claim)
  if claim.kind == 'p' then return queue.units + claim.units <= claim.of end
  if queue.holders == 0 or (claim.kind == 's' and queue.exclusive == 0) then return true end
  return not claim.solo and re_entered(queue, claim.owner, claim.kind) ~= nil
end

-- How many waiters are looked at for one that hears: the dead among them are gone one ttl later anyway.
local WINDOW = 128

-- The waiters at the front that nobody hears and that may be passed over, and the first behind them that is heard.
local function deaf_front(queue)
  local ids = call('ZRANGE', queue.order, queue.holders, queue.holders + WINDOW - 1)
  local texts = call('HMGET', queue.claims, unpack(ids))
  local deaf, at_front = {}, true
  for index, id in ipairs(ids) do
    local waiter = claim_of(id, texts[index])
    if at_front and not waiter.strict and waiter.skipped < 3 and not hears(waiter) then
      deaf[#deaf + 1] = waiter
    else
      at_front = false
      if hears(waiter) then return deaf, id end
    end
  end
  return deaf, nil
end

local function renumber(queue)
  queue.seq = 0
  for _, id in ipairs(call('ZRANGE', queue.order, queue.holders, -1)) do
    queue.seq = queue.seq + 1
    call('ZADD', queue.order, queue.seq, id)
  end
end

-- Moves claims behind another, in order.
local function move_behind(queue, claims, behind)
  local rank = call('ZRANK', queue.order, behind)
  local place, step
  for _ = 1, 2 do
    place = tonumber(call('ZSCORE', queue.order, behind))
    local after = tonumber(call('ZRANGE', queue.order, rank + 1, rank + 1, 'WITHSCORES')[2])
    if not after then
      step = 1
      queue.seq = place + #claims
      break
    end
    step = (after - place) / (#claims + 1)
    if step > 0.000001 then break end
    -- No room between them any more.
    renumber(queue)
  end
  for index, claim in ipairs(claims) do
    claim.skipped = claim.skipped + 1
    call('ZADD', queue.order, format('%.17g', place + step * index), claim.id)
    put(queue, claim)
    if claim.id == queue.front then queue.front, queue.front_ttl = '?', nil end
  end
end

-- Lets in the waiters whose owner has just been granted.
local function re_enter_waiters(queue, claim)
  if claim.solo or claim.kind == 'p' then return end
  local waiting = {}
  for _, id in ipairs(ids_of(queue, 'w', claim.owner)) do
    waiting[#waiting + 1] = {id, tonumber(call('ZSCORE', queue.order, id))}
  end
  table.sort(waiting, function(a, b) return a[2] < b[2] end)
  for _, entry in ipairs(waiting) do
    local waiter = get(queue, entry[1])
    if covers(claim.kind, waiter.kind) then
      grant(queue, waiter, claim.token, claim.token)
      news[#news + 1] = waiter
    end
  end
end

local function promote(queue)
  while queue.waiters > 0 do
    local head = get(queue, call('ZRANGE', queue.order, queue.holders, queue.holders)[1])
    if not fits(queue, head) then break end
    local deaf, behind
    if not head.strict and head.skipped < 3 and not hears(head) then deaf, behind = deaf_front(queue) end
    if behind then
      move_behind(queue, deaf, behind)
    else
      local token, block_end = take(queue, math.max(head.block, 1))
      taken(queue, token, block_end, head.ttl)
      grant(queue, head, token, block_end)
      news[#news + 1] = head
      re_enter_waiters(queue, head)
    end
  end
end

local function sweep(queue)
  if now_ms < queue.sweep_at then return end
  local dead
  repeat
    dead = call('ZRANGEBYSCORE', queue.expiry, '-inf', now_ms, 'LIMIT', 0, 500)
    for _, id in ipairs(dead) do
      if sub(id, 1, 1) == 'm' then
        call('HDEL', queue.claims, id)
        call('ZREM', queue.expiry, id)
        queue.marks = queue.marks - 1
      else
        remove(queue, get(queue, id))
      end
    end
  until #dead < 500
  local first = call('ZRANGE', queue.expiry, 0, 0, 'WITHSCORES')
  queue.sweep_at = tonumber(first[2] or 0)
  promote(queue)
end

-- How many holders are looked at one by one.
local HOLDERS = 16

-- The longest ttl of these holders.
local function longest_ttl(queue, ids)
  if #ids == 1 and queue.front_ttl then return queue.front_ttl end
  -- Of very many, none has a longer one than any claim of this queue ever had.
  if queue.holders > HOLDERS then return queue.kept end
  local longest = 0
  for _, text in ipairs(call('HMGET', queue.claims, unpack(ids))) do
    longest = math.max(longest, tonumber(match(text, '^%d+ (%d+)')))
  end
  return longest
end

local function place(queue, ahead)
  local front, dies, ttl = front_of(queue), nil, 0
  if queue.holders > 0 then
    -- With very many holders the first ones must do: this only says when to ask again.
    local ids = queue.holders == 1 and {front}
      or call('ZRANGE', queue.order, 0, math.min(queue.holders, HOLDERS) - 1)
    for _, id in ipairs(ids) do
      local expires = tonumber(call('ZSCORE', queue.expiry, id))
      if not dies or expires < dies then dies = expires end
    end
    ttl = longest_ttl(queue, ids)
  end
  return ahead, math.max(ahead - queue.holders, 0), queue.holders + queue.waiters > 0 and queue.front_label or 'nobody',
    dies and math.max(dies - now_ms, queue.patience or 0) or 0, ttl
end

local function standing(queue, claim, tag)
  if claim.token > 0 then
    local answer = granted(claim)
    answer[1] = tag or 's'
    return answer
  end
  return {tag and 'v' or 'w', claim.number, claim.ttl, place(queue, call('ZRANK', queue.order, claim.id))}
end

local function missing(queue, id)
  local mark = queue.marks > 0 and call('HGET', queue.claims, 'm' .. id)
  if not mark then return 0 end
  local length, rest = match(mark, '^(%d+) (.*)$')
  return {'b', sub(rest, 1, tonumber(length)), sub(rest, tonumber(length) + 1)}
end

-- A write that Redis does not refuse when it is out of memory: after it, it refuses none of this script.
local function dirty(queue)
  call('PEXPIREAT', queue.key, math.max(queue.until_ms, now_ms + 1))
end

-- One that names another number than the claim has changes nothing.
local function renew(queue, id, ttl, tag, number)
  local claim = get(queue, id)
  if not claim then return missing(queue, id) end
  if number and number ~= claim.number then return standing(queue, claim, tag) end
  dirty(queue)
  if ttl > claim.ttl then
    claim.ttl = ttl
    put(queue, claim)
  end
  local expires = expires_of(claim)
  call('ZADD', queue.expiry, expires, id)
  lives_until(queue, expires, claim.ttl)
  return standing(queue, claim, tag)
end

-- The owner's claims that hold, those that nobody may re-enter included.
local function held_by(queue, owner)
  local held = {}
  for _, id in ipairs(ids_of(queue, 'h', owner)) do held[#held + 1] = get(queue, id) end
  if #held == 0 and queue.holders == 1 then
    local front = get(queue, front_of(queue))
    if front.solo and front.owner == owner then held[1] = front end
  end
  return held
end

local function refuse(queue, claim, reenter)
  local held = queue.holders > 0 and not claim.solo and held_by(queue, claim.owner) or {}
  if reenter ~= '' then
    local token, holds = tonumber(reenter), false
    for _, one in ipairs(held) do holds = holds or (one.token <= token and token <= one.block_end) end
    if not holds then return {'f', 'NotHeld'} end
  end
  if queue.mode == '-' then return end
  if queue.mode ~= (claim.kind == 'p' and '/' .. claim.of or 'x') then
    return {'f', 'Mixed', get(queue, front_of(queue)).shape}
  end
  if #held == 0 then return end
  if held[1].solo then return {'f', 'NotSession'} end
  if claim.kind == 'p' then return {'f', 'PermitsWithinPermits'} end
  for _, one in ipairs(held) do
    if covers(one.kind, claim.kind) then return end
  end
  return {'f', 'Upgrade'}
end

local function claim(queue, id, ttl, wait, client, reenter, presumed)
  local asked = request_of(id, ttl, client)
  local known = get(queue, id)
  if known then
    if known.shape ~= asked.shape or known.owner ~= asked.owner then return {'f', 'Mixed', known.shape} end
    if known.attempt ~= asked.attempt then
      untold[known.number] = true
      known.number = beyond(queue.last)
      queue.last = known.number
      known.attempt = asked.attempt
    end
    known.inbox = asked.inbox
    dirty(queue)
    put(queue, known)
    return renew(queue, id, asked.ttl)
  end
  if presumed > 0 and queue.holders + queue.waiters == 0 then
    -- Somebody held this name when it was last seen, and the store has lost it since.
    local shape = asked.kind == 'p' and 'p' .. asked.of .. '/' .. asked.of or 'x'
    local ghost = request_of('ffffff' .. sub(id, 1, 10), presumed,
      'unknown ' .. shape .. ' 1 o 0 tenure:nobody 0 a holder the store has lost')
    append(queue, ghost, expires_of(ghost), true)
    local token, block_end = take(queue, 1)
    taken(queue, token, block_end, presumed)
    grant(queue, ghost, token, block_end, true)
  end
  local refusal = refuse(queue, asked, reenter)
  if refusal then return refusal end
  local outer = not asked.solo and asked.kind ~= 'p' and queue.holders > 0
    and re_entered(queue, asked.owner, asked.kind)
  local at_once = outer or (queue.waiters == 0 and fits(queue, asked))
  if not at_once and wait == 'n' then
    return {'y', place(queue, queue.holders + queue.waiters)}
  end
  append(queue, asked, expires_of(asked), at_once)
  if outer then
    grant(queue, asked, outer.token, outer.token, true)
  elseif at_once then
    local token, block_end = take(queue, math.max(asked.block, 1))
    taken(queue, token, block_end, asked.ttl)
    grant(queue, asked, token, block_end, true)
  else
    local ahead = queue.holders + queue.waiters - 1
    return {'w', asked.number, asked.ttl, place(queue, ahead)}
  end
  return granted(asked)
end

local function next_block(queue, id, block_end, next_id, ttl, client)
  local held = get(queue, id)
  if not held then
    if get(queue, next_id) then return renew(queue, next_id, ttl, 'm') end
    return missing(queue, id)
  end
  if held.token == 0 or held.block_end ~= block_end then return renew(queue, id, 0) end
  local next_claim = request_of(next_id, ttl, client)
  dirty(queue)
  if queue.waiters == 0 then
    local token, ends = take(queue, math.max(next_claim.block, 1))
    taken(queue, token, ends, held.ttl)
    held.token, held.block_end, held.at = token, ends, now_text
    put(queue, held)
    return renew(queue, id, 0)
  end
  remove(queue, held)
  if get(queue, next_id) then
    renew(queue, next_id, ttl)
  else
    append(queue, next_claim, expires_of(next_claim))
  end
  promote(queue)
  return standing(queue, get(queue, next_id), 'm')
end

-- Ends a claim, leaves a mark and tells its client by whom and why.
local function evict(queue, claim, by, reason)
  local expires = math.max(tonumber(call('ZSCORE', queue.expiry, claim.id)), expires_of(claim))
  -- It may have been broken before, and appended again since.
  queue.marks = queue.marks + call('HSET', queue.claims, 'm' .. claim.id, #by .. ' ' .. by .. reason)
  call('ZADD', queue.expiry, expires, 'm' .. claim.id)
  lives_until(queue, expires, claim.ttl)
  remove(queue, claim)
  call('PUBLISH', claim.inbox, 'b ' .. claim.id .. format(' %.0f ', claim.number) .. #by .. ' ' .. by .. reason)
end

local function break_holders(queue, owner, by, reason, up_to)
  local ended = 0
  if queue.holders == 0 then return 0 end
  for _, id in ipairs(call('ZRANGE', queue.order, 0, queue.holders - 1)) do
    local held = get(queue, id)
    if (owner == '' or held.owner == owner) and (up_to == '' or held.token <= tonumber(up_to)) then
      evict(queue, held, by, reason)
      ended = ended + 1
    end
  end
  return ended
end

-- A record of one claim becomes a queue.
local function convert(key, record)
  local held = single(record)
  local left = call('PTTL', key)
  if left < 0 then left = held.ttl end
  local queue = blank(key)
  queue.last = math.max(held.number, held.block_end)
  queue.blocks = sub(record, 1, 1) == 'B'
  queue.mode = held.kind == 'p' and '/' .. held.of or 'x'
  queue.grants = 1
  queue.front, queue.front_label, queue.front_ttl = held.id, label_of(held), held.ttl
  count_holder(queue, held, 1)
  put(queue, held)
  call('ZADD', queue.order, format('%.0f', FRONT + 1), held.id)
  call('ZADD', queue.expiry, now_ms + left, held.id)
  index(queue, 'h', held, true)
  lives_until(queue, now_ms + left, held.ttl)
  queue.touch = true
  return queue
end

local function free_last(record)
  if not record then return 0 end
  return tonumber(match(record, '^f(%d+)$') or error('the record is not tenure\'s'))
end

-- ---- what is asked of a name: the record first, the queue if need be ----

local slow = {}

-- Writes the queue, then tells those that were granted: not the one the answer is about, nor one that was ended since.
local function done(queue, answer)
  save(queue)
  if type(answer) == 'table' then untold[answer[2]] = true end
  for _, claim in ipairs(news) do
    if not untold[claim.number] then
      call('PUBLISH', claim.inbox, 'g ' .. claim.id .. format(' %.0f %.0f %.0f ', claim.number, claim.token,
        claim.block_end) .. claim.at)
    end
  end
end

-- Whether this server is giving the name's slot away. A key that is missing is refused then, and those that an
-- operation empties would be, half way through it.
local function leaves(key)
  return not per_server and type(pcall('GET', key .. 'missing')) == 'table'
end

-- For any change but a renewal: who holds and waits is renewed also while the slot moves.
local function open(key, record, renews)
  local queue
  local moving = leaves(key)
  if moving and not renews then error({err = 'TRYAGAIN this name is on its way to another server'}) end
  if sub(record, 1, 1) == 'q' then
    queue = load(key, record)
    -- On its way to another node, or partly evicted: the rest comes, or the whole expires. The claims move as one, so
    -- that one of them stands for all.
    if call('ZCARD', queue.order) ~= queue.holders + queue.waiters
      or call('ZCARD', queue.expiry) ~= queue.holders + queue.waiters + queue.marks
      or not call('HGET', queue.claims, call('ZRANGE', queue.expiry, 0, 0)[1] or '') then
      error({err = 'TRYAGAIN the keys of this name are not all here'})
    end
  else
    queue = convert(key, record)
  end
  if moving then
    -- Who waits for a dead holder asks when that has moved, not at once again.
    queue.patience = 50
  else
    sweep(queue)
  end
  return queue
end

function slow.claim(key, id, ttl, block, wait, client, reenter, presumed)
  begin(id)
  local record = call('GET', key)
  local tag = record and sub(record, 1, 1)
  if not record or tag == 'f' then
    if presumed == 0 then
      if reenter ~= '' then return {'f', 'NotHeld'} end
      local asked = request_of(id, ttl, client)
      local token = beyond(free_last(record))
      asked.number, asked.token, asked.block_end, asked.at = token, token, token + math.max(block, 1) - 1, now_text
      write_single(key, asked, block > 1 or tag == 'f')
      given(asked.block_end, asked.ttl, block > 1 or tag == 'f')
      return granted(asked)
    end
    local queue = blank(key)
    queue.last, queue.blocks = free_last(record), tag == 'f'
    local answer = claim(queue, id, ttl, wait, client, reenter, presumed)
    done(queue, answer)
    return answer
  end
  if tag == '1' or tag == 'B' then
    if sub(record, 2, 17) == id then
      local held, asked = single(record), request_of(id, ttl, client)
      if held.shape ~= asked.shape or held.owner ~= asked.owner then return {'f', 'Mixed', held.shape} end
      if held.attempt ~= asked.attempt then
        held.number = beyond(math.max(held.number, held.block_end))
        held.attempt = asked.attempt
        if per_server then last = held.number end
      end
      held.inbox = asked.inbox
      held.ttl = math.max(held.ttl, asked.ttl)
      write_single(key, held, tag == 'B')
      return granted(held)
    end
    if wait == 'n' and reenter == '' then
      local held, asked = single(record), request_of(id, ttl, client)
      if held.kind == 'x' and asked.kind ~= 'p' and held.owner ~= asked.owner then
        return {'y', 1, 0, label_of(held), math.max(call('PTTL', key), 0), held.ttl}
      end
    end
  end
  local queue = open(key, record)
  local answer = claim(queue, id, ttl, wait, client, reenter, presumed)
  done(queue, answer)
  return answer
end

function slow.renew(key, record, id, ttl, number)
  begin(id)
  local tag = sub(record, 1, 1)
  if tag == '1' or tag == 'B' then
    if sub(record, 2, 17) ~= id then return 0 end
    local held = single(record)
    if number and number ~= held.number then return granted(held) end
    held.ttl = math.max(held.ttl, ttl)
    write_single(key, held, tag == 'B')
    return granted(held)
  end
  if tag ~= 'q' then return 0 end
  local queue = open(key, record, true)
  local answer = renew(queue, id, ttl, nil, number)
  done(queue, answer)
  return answer
end

function slow.release(key, record, id, number, waiting_only)
  begin(id)
  local tag = sub(record, 1, 1)
  if (tag == '1' or tag == 'B') and sub(record, 2, 17) == id then
    local held = single(record)
    if number ~= '' and held.number ~= tonumber(number) then return 0 end
    if waiting_only then return 2 end
    call('PEXPIRE', key, held.ttl) -- as in `dirty`; the key is never missing
    call('SET', key, format('f%.0f', math.max(held.number, held.block_end)), 'PX', held.ttl + 60000)
    return 1
  end
  if tag ~= 'q' then return 0 end
  local queue = open(key, record)
  local held, answer = get(queue, id), 1
  if not held or (number ~= '' and held.number ~= tonumber(number)) then
    answer = missing(queue, id)
  elseif waiting_only and held.token > 0 then
    answer = 2
  else
    remove(queue, held)
    promote(queue)
  end
  done(queue, answer)
  return answer
end

function slow.next_block(key, id, block_end, next_id, ttl, client)
  begin(id, next_id)
  local record = call('GET', key)
  local tag = record and sub(record, 1, 1)
  if not record or tag == 'f' then return 0 end
  if tag == '1' or tag == 'B' then
    local held = single(record)
    if held.id ~= id then
      if held.id ~= next_id then return 0 end
      held.ttl = math.max(held.ttl, ttl)
      write_single(key, held, tag == 'B')
      local answer = granted(held)
      answer[1] = 'm'
      return answer
    end
    if held.block_end == block_end then
      local count = math.max(request_of(next_id, ttl, client).block, 1)
      local token = beyond(math.max(held.number, held.block_end))
      held.token, held.block_end, held.at = token, token + count - 1, now_text
      if count > 1 then tag = 'B' end
      given(held.block_end, held.ttl, count > 1)
    end
    write_single(key, held, tag == 'B')
    return granted(held)
  end
  local queue = open(key, record)
  local answer = next_block(queue, id, block_end, next_id, ttl, client)
  done(queue, answer)
  return answer
end

function slow.break_holders(key, owner, by, reason, up_to)
  begin()
  local record = call('GET', key)
  if not record or sub(record, 1, 1) == 'f' then return 0 end
  local queue = open(key, record)
  local answer = break_holders(queue, owner, by, reason, up_to)
  if answer > 0 then promote(queue) end
  done(queue, answer)
  return answer
end

function slow.break_waiter(key, id, number, by, reason)
  begin()
  local record = call('GET', key)
  -- A record of one claim is of one that holds.
  if not record or sub(record, 1, 1) ~= 'q' then return 0 end
  local queue = open(key, record)
  local waiter, answer = get(queue, id), 0
  if waiter and waiter.number == tonumber(number) and waiter.token == 0 then
    evict(queue, waiter, by, reason)
    promote(queue)
    answer = 1
  end
  done(queue, answer)
  return answer
end

return slow
