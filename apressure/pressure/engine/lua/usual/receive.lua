-- The usual case of receive.lua for a few messages, or for none, with as few commands as possible: this client's lease,
-- or a free role that the step takes, no claim, leftover, pause or limit, nothing that was given back or is due, and
-- acknowledgements of the oldest messages in flight, or none. In any other case it writes nothing.
-- KEYS, ARGV, Returns: those of receive.lua; nil for any other case
local fresh, behind = ARGV[3] == '1', ARGV[10] == '2'
if ARGV[8] == '1' or #ARGV > 13 or fresh and ARGV[10] ~= '0' then return nil end
local BOUND, HOLDER, FREE, NOT_FULL, INFLIGHT = KEYS[2], KEYS[4], KEYS[6], KEYS[11], KEYS[19]
local COUNT, BYTES, CLOSED, PRODUCER_LEASE, CONSUMER_LEASE = KEYS[9], KEYS[10], KEYS[12], KEYS[13], KEYS[14]
local PRODUCER_CLAIM, CONSUMER_CLAIM, APART, REDELIVERED = KEYS[15], KEYS[16], KEYS[20], KEYS[21]
local CONTROL, DELAYED, SOONER, OP = KEYS[22], KEYS[23], KEYS[25], KEYS[27]

local texts = call('MGET', BOUND, COUNT, BYTES, OP)
local bound = texts[1]
if not are_plain(bound, texts[2], texts[3]) or fresh and repeated(texts[4], ARGV[9]) then return nil end
local length = call('LLEN', LIST)
local most = math.min(length, tonumber(ARGV[5]))
if length > 0 and (most < 1 or most > 5) then return nil end
local lease = fresh and {} or call('HMGET', CONSUMER_LEASE, 'token', 'next', 'hold', 'step', 'deadline', 'duration')
if fresh then
  if call('EXISTS', CONSUMER_LEASE, INFLIGHT) > 0 or call('LLEN', FREE) == 0 then return nil end
elseif lease[1] ~= ARGV[2] or lease[2] ~= ARGV[7] then
  return nil
end
if behind then
  local deadline, duration = lease[5] or '', lease[6] or ''
  if lease[4] ~= tostring(ARGV[9] - 1) or math.max(#deadline, #duration) > 13 then return nil end
  if not string.find(deadline .. ' ' .. duration, '^%d+ [1-9]%d*$') or tonumber(deadline) <= now() then return nil end
end
local unusual = call('EXISTS', CLOSED, PRODUCER_LEASE, PRODUCER_CLAIM, CONSUMER_CLAIM, APART, REDELIVERED, CONTROL,
                     DELAYED)
if unusual > 0 and (length == 0 or not only_delayed(unusual, bound)) then return nil end
local permits, flying, number, acked = call('LLEN', NOT_FULL), call('LLEN', INFLIGHT), tonumber(ARGV[7]), 0
if permits > 1 then return nil end
if ARGV[11] then
  acked = ARGV[12] - ARGV[11] + 1
  if tonumber(ARGV[11]) ~= number - flying or acked > flying then return nil end
end
if length == 0 then
  local stays = fresh or lease[3] == '1' or flying > acked
  if permits == 0 or not stays then return nil end
end

-- The first write must be one that a server which is out of memory does not refuse. The lease comes before the
-- messages: where the user lacks a right, they stay in the queue, or the lease expires, and the role is free again.
local deadline = now() + ARGV[6]
if length == 0 then
  call('DEL', SOONER)
elseif fresh then
  call('DEL', CONSUMER_CLAIM)  -- which is not there: so a user without this right fails before he has the role
elseif acked == 0 then
  call('HDEL', CONSUMER_LEASE, '')
end
if acked > 0 then
  call('LTRIM', INFLIGHT, 0, -acked - 1)
  call('INCRBY', COUNT, acked)
  call('INCRBY', BYTES, ARGV[13])
end
if fresh then
  call('SET', HOLDER, ARGV[1])
else
  call('HSET', CONSUMER_LEASE, 'step', ARGV[9],
       unpack(behind and {} or {'deadline', deadline, 'duration', ARGV[6]}))
end
if length == 0 then return {'empty', -1, -1} end
if fresh then
  call('HSET', CONSUMER_LEASE, 'token', ARGV[2], 'uid', ARGV[1], 'since', now(), 'deadline', deadline,
       'duration', ARGV[6], 'next', number, 'step', ARGV[9])
  call('DEL', FREE)
end

local messages, bytes = {}, 0
repeat
  messages[#messages + 1] = call('LMOVE', LIST, INFLIGHT, 'RIGHT', 'LEFT')
  bytes = bytes + #messages[#messages]
until #messages == most or bytes >= 1048576
call('HSET', CONSUMER_LEASE, 'next', number + #messages)
set_permit(bound, length - #messages, permits)
return {'ok', {messages}, {}, 0}
