-- The usual case of get.lua, with as few commands as possible: no lease, claim, leftover or pause, no limit that keeps
-- the message, nothing that is due or was delayed, a free role that this client had before, no other client that waits,
-- and a message in a queue that is not over its bound, or none in one that is open and has no limits. In any other case
-- it writes nothing.
-- KEYS, ARGV, Returns: those of get.lua; nil for any other case
if ARGV[2] .. ARGV[3] .. ARGV[4] ~= '01' then return nil end
local BOUND, HOLDER, FREE, NOT_FULL = KEYS[2], KEYS[4], KEYS[6], KEYS[11]
local COUNT, BYTES, PRODUCER_LEASE, CONSUMER_LEASE = KEYS[9], KEYS[10], KEYS[13], KEYS[14]
local PRODUCER_CLAIM, CONSUMER_CLAIM, INFLIGHT, APART = KEYS[15], KEYS[16], KEYS[19], KEYS[20]
local CLOSED, CONTROL, DELAYED, POPPED, SOONER = KEYS[12], KEYS[22], KEYS[23], KEYS[24], KEYS[25]

local texts = call('MGET', BOUND, COUNT, BYTES, HOLDER)
local bound = texts[1]
if not are_plain(bound, texts[2], texts[3]) or texts[4] ~= ARGV[1] then return nil end
local unusual = call('EXISTS', PRODUCER_LEASE, CONSUMER_LEASE, PRODUCER_CLAIM, CONSUMER_CLAIM, INFLIGHT, APART, CONTROL,
                     DELAYED, POPPED)
local pace
if unusual > 0 then
  pace = next_pace(CONTROL)
  if pace == false then return nil end
  if pace then unusual = unusual - 1 end
end
if unusual > 0 and not only_delayed(unusual, bound) then return nil end
local watch = redis.pcall('HMGET', WATCH, 'id', 'others')
if watch.err or watch[2] or (watch[1] and watch[1] ~= ARGV[5]) then return nil end
if call('LLEN', FREE) == 0 or call('LLEN', NOT_FULL) ~= 1 then return nil end
if bound ~= '0' and call('LLEN', LIST) > tonumber(bound) then return nil end

local message = call('RPOP', LIST)
if not message then
  if unusual > 0 or pace or call('EXISTS', CLOSED) == 1 then return nil end
  if ARGV[5] == '' then return {'empty'} end
  call('HDEL', CONSUMER_LEASE, '')  -- changes nothing: a server that is out of memory does not refuse it
  local left = watched_by_another(ARGV[5])
  if left then return {'turn', left} end
  call('DEL', SOONER)
  return {'watch', -1, -1}
end
if watch[1] then call('DEL', WATCH) end
if pace and pace ~= '' then call('HSET', CONTROL, 'next', pace) end
call('INCRBY', COUNT, 1)
call('INCRBY', BYTES, #message)
return {'messages', {message}}
