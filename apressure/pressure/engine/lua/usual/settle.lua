-- The usual case of settle.lua for acknowledgements of the oldest messages in flight, with as few commands as possible:
-- this client's lease, no pause or limit, nothing that was given back or is due. In any other case it writes nothing.
-- KEYS, ARGV, Returns: those of settle.lua; nil for any other case
if ARGV[3] == '1' or ARGV[5] == '1' or ARGV[7] ~= '3' or #ARGV ~= 10 then return nil end
local BOUND, FREE, COUNT, BYTES = KEYS[2], KEYS[6], KEYS[9], KEYS[10]
local CONSUMER_LEASE, INFLIGHT, APART, CONTROL, DELAYED = KEYS[14], KEYS[19], KEYS[20], KEYS[22], KEYS[23]
local OP = KEYS[27]

local lease = call('HMGET', CONSUMER_LEASE, 'token', 'next', 'hold')
local next_number = natural(lease[2])
if lease[1] ~= ARGV[1] or not next_number then return nil end
local texts = call('MGET', BOUND, COUNT, BYTES)
local bound = texts[1]
if not are_plain(bound, texts[2], texts[3]) then return nil end
local unusual = call('EXISTS', APART, CONTROL, DELAYED)
if unusual > 0 and not only_delayed(unusual, bound) then return nil end
local flying, acked = call('LLEN', INFLIGHT), ARGV[9] - ARGV[8] + 1
if tonumber(ARGV[8]) ~= next_number - flying or acked < 1 or acked > flying then return nil end
if not has_right_permit(bound) then return nil end
local ends = lease[3] ~= '1' and acked == flying
if ends and call('LLEN', FREE) > 0 then return nil end

local deadline = now() + ARGV[2]  -- before the first write: a user may lack the right
call('LTRIM', INFLIGHT, 0, -acked - 1)
call('INCRBY', COUNT, acked)
call('INCRBY', BYTES, ARGV[10])
if ends then
  call('DEL', CONSUMER_LEASE)
  call('LPUSH', FREE, 1)
else
  call('HSET', CONSUMER_LEASE, 'deadline', deadline, 'duration', ARGV[2])
end
call('SET', OP, ARGV[4] .. ':' .. acked, 'PX', 300000)
return acked
