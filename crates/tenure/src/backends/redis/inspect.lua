-- Everything Redis has of one name, at one moment: the server's time, the record and its remaining ms, and, of a
-- queue, the claims, their order and their expiry.
local time = redis.call('TIME')
local key = KEYS[1]
local record = redis.call('GET', key)
local answer = {time[1] * 1000000 + time[2], record or '', redis.call('PTTL', key)}
if record and string.sub(record, 1, 1) == 'q' then
  answer[4] = redis.call('HGETALL', key .. 'claims')
  answer[5] = redis.call('ZRANGE', key .. 'order', 0, -1)
  answer[6] = redis.call('ZRANGE', key .. 'expiry', 0, -1, 'WITHSCORES')
end
return answer
