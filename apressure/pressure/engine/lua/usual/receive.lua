-- The usual case of receive.lua for a few messages, with as few commands as possible: this client's lease, no claim,
-- leftover, pause or limit, nothing that was given back or is due, and acknowledgements of the oldest messages in
-- flight, or none. In any other case it writes nothing.
-- KEYS, ARGV, Returns: those of receive.lua; nil for any other case
if ARGV[3] == '1' or ARGV[8] == '1' or #ARGV > 13 then return nil end
local BOUND, NOT_FULL, INFLIGHT = KEYS[2], KEYS[11], KEYS[19]
local COUNT, BYTES, CLOSED, PRODUCER_LEASE, CONSUMER_LEASE = KEYS[9], KEYS[10], KEYS[12], KEYS[13], KEYS[14]
local PRODUCER_CLAIM, CONSUMER_CLAIM, APART, REDELIVERED = KEYS[15], KEYS[16], KEYS[20], KEYS[21]
local CONTROL, DELAYED = KEYS[22], KEYS[23]

local length = call('LLEN', LIST)
local most = math.min(length, tonumber(ARGV[5]))
if most < 1 or most > 5 then return nil end
local lease = call('HMGET', CONSUMER_LEASE, 'token', 'next', 'step', 'deadline', 'duration')
if lease[1] ~= ARGV[2] or lease[2] ~= ARGV[7] then return nil end
local time = call('TIME')
time = time[1] * 1000 + math.floor(time[2] / 1000)
local behind = ARGV[10] == '2'
if behind then
  local deadline, duration = lease[4] or '', lease[5] or ''
  if lease[3] ~= tostring(ARGV[9] - 1) or math.max(#deadline, #duration) > 13 then return nil end
  if not string.find(deadline .. ' ' .. duration, '^%d+ [1-9]%d*$') or tonumber(deadline) <= time then return nil end
end
local texts = call('MGET', BOUND, COUNT, BYTES)
local bound = texts[1]
if not are_plain(bound, texts[2], texts[3]) then return nil end
local unusual = call('EXISTS', CLOSED, PRODUCER_LEASE, PRODUCER_CLAIM, CONSUMER_CLAIM, APART, REDELIVERED, CONTROL,
                     DELAYED)
if unusual > 0 and not only_delayed(unusual, bound) then return nil end
local permits, flying, number, acked = call('LLEN', NOT_FULL), call('LLEN', INFLIGHT), tonumber(ARGV[7]), 0
if permits > 1 then return nil end
if ARGV[11] then
  acked = ARGV[12] - ARGV[11] + 1
  if tonumber(ARGV[11]) ~= number - flying or acked > flying then return nil end
end

local messages, bytes = {}, 0
repeat
  messages[#messages + 1] = call('RPOP', LIST)
  bytes = bytes + #messages[#messages]
until #messages == most or bytes >= 1048576
if acked > 0 then
  call('LTRIM', INFLIGHT, 0, -acked - 1)
  call('INCRBY', COUNT, acked)
  call('INCRBY', BYTES, ARGV[13])
end
call('LPUSH', INFLIGHT, unpack(messages))
if bound == '0' or length - #messages < tonumber(bound) then
  if permits == 0 then call('LPUSH', NOT_FULL, 1) end
elseif permits > 0 then
  call('DEL', NOT_FULL)
end
local deadline = {}
if not behind then deadline = {'deadline', time + ARGV[6], 'duration', ARGV[6]} end
call('HSET', CONSUMER_LEASE, 'next', number + #messages, 'step', ARGV[9], unpack(deadline))
return {'ok', {messages}, {}, 0}
