-- The usual case of pop.lua for one event, with as few commands as possible: an open queue without a pause, limits or
-- keys, no attempts before and no time when it expires, nothing due, nobody who waits for room or in line, no claim that has
-- expired, and no claims to look for. In any other case it writes nothing.
-- KEYS, ARGV, Returns: those of pop.lua; nil for any other case
if ARGV[2] == '1' or ARGV[3] ~= '1' then return nil end
local call = redis.call
local KEYED, LINES, RING = KEYS[23], KEYS[24], KEYS[25]
local UNCLAIMED, CLAIMED, ITEMS, CLOSED, EXPIRY = KEYS[1], KEYS[2], KEYS[3], KEYS[6], KEYS[7]
local ATTEMPTS, WATCH, ROOM, PUTTERS, SCAN = KEYS[8], KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local CONTROL, DELAYED, LATER, EXPIRES, OP = KEYS[16], KEYS[19], KEYS[20], KEYS[21], KEYS[26]

local id = redis.pcall('LRANGE', UNCLAIMED, -1, -1)[1]  -- of a wrong type: the step says what is wrong
if not id then return nil end
local lock = UNCLAIMED .. ':lock:' .. id
local waits = ARGV[6] == '' and CLOSED or WATCH
local others = call('EXISTS', lock, CLOSED, CONTROL, ROOM, PUTTERS, KEYED, LINES, RING, waits)
if others > 0 then return nil end
if call('EXISTS', ATTEMPTS, DELAYED, LATER, EXPIRES) > 0 then
  if not delayed_beside(id) then return nil end
end
if not bound_for(ARGV[1], ARGV[8]) then return nil end
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local claims = call('LLEN', CLAIMED)
if claims == 0 then
  if call('EXISTS', EXPIRY, SCAN) > 0 then return nil end
else
  local left = call('PTTL', SCAN)
  if left <= 9500 and (left <= 0 or call('ZCARD', EXPIRY) ~= claims) then return nil end
  if call('ZRANGEBYSCORE', EXPIRY, '-inf', now, 'LIMIT', 0, 1)[1] then return nil end
end
-- The other keys must be of their types.
call('LLEN', KEYS[9])
call('LLEN', KEYS[10])
local contents = call('HGET', ITEMS, id)
if not contents then return nil end

-- The first write must be one that a server which is out of memory does not refuse.
call('LTRIM', UNCLAIMED, 0, -2)
if ARGV[4] == '0' then
  call('HDEL', ITEMS, id)
  call('ZREM', EXPIRY, id)
  return {'events', {id}, {contents}, {1}, 0}
end
call('SET', lock, ARGV[5], 'PX', ARGV[4])
call('LPUSH', CLAIMED, id)
call('ZADD', EXPIRY, now + ARGV[4] + 0.0003, id)
call('PEXPIRE', EXPIRY, 3600000)
call('SET', OP, ARGV[1] .. ':' .. #id .. ':' .. id, 'PX', 300000)
return {'events', {id}, {contents}, {1}, 0}
