local function effect(KEYS, ARGV)
EFFECT
end

local token, owner, shape = ARGV[1], ARGV[2], ARGV[3]
local shared = shape == 'shared' or shape == 'look shared'
local seen = redis.call('HMGET', KEYS[1], 'token', 'owner', 'writer_token', 'writer_owner')
local newer, holder = seen[1], seen[2]
if shared then
    newer, holder = seen[3], seen[4]
end
if newer and (token < newer or (token == newer and owner ~= holder)) then
    return {0, newer}
end
if shape == 'exclusive' then
    redis.call('HSET', KEYS[1], 'token', token, 'owner', owner, 'writer_token', token, 'writer_owner', owner)
elseif shape == 'shared' and not (seen[1] and seen[1] >= token) then
    redis.call('HSET', KEYS[1], 'token', token, 'owner', owner)
end

local keys, args = {}, {}
for place = 2, #KEYS do
    keys[place - 1] = KEYS[place]
end
for place = 4, #ARGV do
    args[place - 3] = ARGV[place]
end
return {1, effect(keys, args)}
