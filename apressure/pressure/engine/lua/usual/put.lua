-- The usual case of put.lua, with as few commands as possible: no claim or leftover, no lease but a live consumer's,
-- nothing due, a free role, and more than enough room. In any other case it writes nothing.
-- KEYS, ARGV, Returns: those of put.lua; nil for any other case
local messages = #ARGV - 6
if ARGV[3] .. ARGV[4] .. ARGV[5] ~= '00' or messages > 1000 then return nil end
local BOUND, HOLDER, FREE, NOT_FULL, OP = KEYS[2], KEYS[3], KEYS[5], KEYS[11], KEYS[27]
local COUNT, BYTES, CLOSED, PRODUCER_LEASE, CONSUMER_LEASE = KEYS[7], KEYS[8], KEYS[12], KEYS[13], KEYS[14]
local PRODUCER_CLAIM, CONSUMER_CLAIM, INFLIGHT, APART, DELAYED = KEYS[15], KEYS[16], KEYS[19], KEYS[20], KEYS[23]
local later = 0

local texts = call('MGET', BOUND, COUNT, BYTES, OP, HOLDER)
local bound, last = texts[1], texts[4]
if not are_plain(bound, texts[2], texts[3]) then return nil end
if last and tonumber(string.match(last, '^%d+') or ARGV[2]) >= tonumber(ARGV[2]) then return nil end
local unusual = call('EXISTS', CLOSED, PRODUCER_LEASE, CONSUMER_LEASE, PRODUCER_CLAIM, CONSUMER_CLAIM, INFLIGHT, APART,
                     DELAYED)
if unusual > 0 then
  local there = call('EXISTS', CLOSED, PRODUCER_LEASE, PRODUCER_CLAIM, CONSUMER_CLAIM, DELAYED)
  if there > 0 then
    later = only_delayed(there, bound)
    if not later then return nil end
  end
  if unusual > there then
    local lease = call('HMGET', CONSUMER_LEASE, 'deadline', 'duration')
    if not (lease[1] and lease[2]) or math.max(#lease[1], #lease[2]) > 13 then return nil end
    if not string.find(lease[1] .. ' ' .. lease[2], '^%d+ %d+$') then return nil end
    local time = call('TIME')
    local left = lease[1] - time[1] * 1000 - time[2] / 1000
    if left <= 1 or left > tonumber(lease[2]) then return nil end
  end
end
if call('LLEN', FREE) == 0 or call('LLEN', NOT_FULL) ~= 1 then return nil end
local length = call('LLEN', LIST)
if bound ~= '0' and length + later + messages >= tonumber(bound) then return nil end

if texts[5] ~= ARGV[1] then call('SET', HOLDER, ARGV[1]) end
local bytes = 0
for i = 7, 6 + messages do bytes = bytes + #ARGV[i] end
call('INCRBY', COUNT, messages)
call('INCRBY', BYTES, bytes)
call('LPUSH', LIST, unpack(ARGV, 7))
call('SET', OP, ARGV[2] .. ':' .. messages, 'PX', 300000)
return messages
