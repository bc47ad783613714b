-- Claims in Redis: the plain case, and `queue.lua` for all others. The rule is `machine::apply`, operation by operation;
-- a test holds the two together.
--
-- KEYS: [the server's last token] then one record per operation.   ARGV: whether KEYS[1] is that key, the highest
-- token the client has seen, then the operations.   Answer: the server's time in us, then one answer per operation.
--
-- A record is a string:
--   1ID,TTL,NUMBER TOKEN END AT CLIENT   one claim holds, nobody waits ("B": it was given a block of tokens). ID has
--                                        16 digits and TTL (ms) 8, without the commas; the rest is parted by spaces
--   q...                                 the queue is in three more keys: claims, order, expiry
--   fLAST                                free, but the next token must be above LAST
-- CLIENT is OWNER SHAPE BLOCK FLAGS ATTEMPT INBOX WITHIN... LABEL, as the client wrote it.

local call, guard, pcall = redis.call, pcall, redis.pcall
local sub, match, find, format = string.sub, string.match, string.find, string.format

local now, now_ms, now_text, above
local key_index, arg = 0, 3
local per_server = ARGV[1] == '1'
local last, written = 0, 0
if per_server then key_index = 1 end

local queue
local answers, count, total = {0}, 1, #ARGV
-- Names that are granted by one call may have the same token, as long as none is granted twice in it.
local token, after_ttl

-- Releases come first. Several that each end the one claim of a name are read by one command and ended by another;
-- what is anything else is left to the loop below.
local releases = 0
while ARGV[arg + 3 * releases] == 'd' do releases = releases + 1 end
if per_server and releases > 1 then
  local records, ended = pcall('MGET', unpack(KEYS, 2, releases + 1)), {}
  for index = 1, records.err and 0 or releases do
    local at = arg + 3 * index
    local record, number = records[index], ARGV[at - 1]
    if record and find(record, ARGV[at - 2], 1, true) == 1
      and (number == '' or find(record, number .. ' ', 26, true) == 26) then
      ended[#ended + 1] = KEYS[index + 1]
      answers[index + 1] = 1
    end
  end
  local done = #ended == 0 and 0 or pcall('DEL', unpack(ended))
  if type(done) == 'table' then
    -- A right that is missing, say: each is told.
    answers = {0}
  elseif done < #ended then
    -- Some were ended twice: the second finds nothing.
    local before = {}
    for index = 2, releases + 1 do
      if before[KEYS[index]] and answers[index] then answers[index] = 0 end
      before[KEYS[index]] = before[KEYS[index]] or answers[index]
    end
  end
end

-- No functions here: each would be made anew by every call.
while arg <= total do
  local op, id, third = ARGV[arg], ARGV[arg + 1], ARGV[arg + 2]
  key_index = key_index + 1
  local key = KEYS[key_index]
  local answer, record

  if op == 'd' then
    -- release: "1" id, number or nothing
    token = nil
    answer = answers[count + 1]
    record = not answer and pcall('GET', key)
    if answer then
      -- It was ended above.
    elseif not record then
      answer = 0
    elseif type(record) == 'table' then
      answer = {'e', record.err}
    elseif per_server and sub(record, 1, 17) == id then
      if third ~= '' and sub(record, 26, 26 + #third) ~= third .. ' ' then
        answer = 0
      else
        answer = pcall('DEL', key)
        if type(answer) == 'table' then answer = {'e', answer.err} end
      end
    end
    arg = arg + 3
  elseif op == 'r' then
    -- renewal: "1" id ttl(8), ttl
    record = pcall('GET', key)
    if not record then
      answer = 0
    elseif type(record) == 'table' then
      answer = {'e', record.err}
    elseif sub(record, 1, 25) == id then
      answer = pcall('PEXPIRE', key, third)
      answer = type(answer) == 'table' and {'e', answer.err} or sub(record, 18, 110)
    end
    arg = arg + 3
  elseif op == 'R' then
    -- renewal of the claim with this number: "1" id ttl(8), ttl, number
    local number = ARGV[arg + 3]
    record = pcall('GET', key)
    if not record then
      answer = 0
    elseif type(record) == 'table' then
      answer = {'e', record.err}
    elseif sub(record, 1, 25) == id and sub(record, 26, 26 + #number) == number .. ' ' then
      answer = pcall('PEXPIRE', key, third)
      answer = type(answer) == 'table' and {'e', answer.err} or sub(record, 18, 110)
    end
    arg = arg + 4
  elseif op == 'w' then
    -- release of a claim that waits: "1" id, number or nothing
    record = pcall('GET', key)
    if not record then
      answer = 0
    elseif type(record) == 'table' then
      answer = {'e', record.err}
    end
    arg = arg + 3
  end

  -- Reads the clock and what was given last, once, and only if something needs them: releasing does not.
  if answer == nil and not now then
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
    now_ms = math.floor(now / 1000)
    now_text = format('%.0f', now)
    -- What a client has seen counts, unless it is so far ahead that its server's clock must have been wrong.
    local seen = tonumber(ARGV[2])
    above = now - 1
    if seen > above and seen <= now + 10000000 then above = seen end
    if per_server then
      -- What is most likely given next is written at once, and what was there is read by the same command.
      written = above + 1
      local before = pcall('SET', KEYS[1], written == now and now_text or format('%.0f', written), 'PX', 86400000, 'GET')
      if type(before) == 'table' then
        -- Refused: out of memory, or worse.
        written = 0
        before = pcall('GET', KEYS[1])
      end
      last = type(before) == 'string' and tonumber(before) or 0
    end
  end

  local client = ARGV[arg + 3]
  if op == 'C' or op == 'T' then
    -- claim of one token, that waits or not: "1" id ttl(8), ttl, client
    if not token then
      token = (last > above and last or above) + 1
      local text = token == now and now_text or format('%.0f', token)
      after_ttl = text .. ' ' .. text .. ' ' .. text .. ' ' .. now_text .. ' '
    end
    local done = pcall('SET', key, id .. after_ttl .. client, 'NX', 'PX', third)
    if done and done.ok then
      if token > last then last = token end
      answer = token
    elseif done then
      answer = {'e', done.err}
    end
    arg = arg + 4
  end

  if answer == nil then
    if not queue then
      queue = (function()
--@queue
      end)()
    end
    token = nil
    -- Before its first write an operation can fail without having changed anything; after it Redis refuses nothing
    -- (keys that are missing while a slot moves: see `leaves`).
    local ok
    if op == 'C' or op == 'T' then
      ok, answer = guard(queue.claim, key, sub(id, 2, 17), third, 1, op == 'C' and 'q' or 'n', client, '', 0)
    elseif op == 'd' then
      ok, answer = guard(queue.release, key, record, sub(id, 2), third)
    elseif op == 'w' then
      ok, answer = guard(queue.release, key, record, sub(id, 2), third, true)
    elseif op == 'r' then
      ok, answer = guard(queue.renew, key, record, sub(id, 2, 17), tonumber(third))
    elseif op == 'R' then
      ok, answer = guard(queue.renew, key, record, sub(id, 2, 17), tonumber(third), tonumber(ARGV[arg - 1]))
    elseif op == 'c' then
      -- any other claim: id, ttl, block, wait, client, token to re-enter with, ms to presume a holder
      ok, answer = guard(queue.claim, key, id, third, tonumber(client), ARGV[arg + 4], ARGV[arg + 5], ARGV[arg + 6],
        tonumber(ARGV[arg + 7]))
      arg = arg + 8
    elseif op == 'n' then
      -- next block: id, end of the present one, then the next claim's id, ttl, client
      ok, answer = guard(queue.next_block, key, id, tonumber(third), client, tonumber(ARGV[arg + 4]), ARGV[arg + 5])
      arg = arg + 6
    elseif op == 'x' then
      -- break of a waiter: id, number, by, reason
      ok, answer = guard(queue.break_waiter, key, id, third, client, ARGV[arg + 4])
      arg = arg + 5
    else
      -- break: owner or nothing, by, reason, the highest token of those who are meant or nothing
      ok, answer = guard(queue.break_holders, key, id, third, client, ARGV[arg + 4])
      arg = arg + 5
    end
    if not ok then
      answer = {'e', type(answer) == 'table' and answer.err or tostring(answer)}
      -- A right that is missing, say: what was written before must not stay for ever.
      local left = pcall('PTTL', key)
      if type(left) ~= 'number' or left < 1 then left = 1 end
      for _, part in ipairs({'claims', 'order', 'expiry'}) do pcall('PEXPIRE', key .. part, left) end
    end
  end
  count = count + 1
  answers[count] = answer
end
if per_server and last > written then
  pcall('SET', KEYS[1], format('%.0f', last), 'PX', 86400000)
end
answers[1] = now or 0
return answers
