-- The usual case of pop.lua for one event, where one is asked for or no more wait, with as few commands as possible: an
-- open queue without a pause, limits or keys, no attempts before and no time when it expires, nothing due, nobody who
-- waits for room, and in line at most this client, no claim that has expired, and no claims to look for. In any other
-- case it writes nothing.
-- KEYS, ARGV, Returns: those of pop.lua; nil for any other case
if ARGV[2] == '1' then return nil end
local KEYED, LINES, RING = KEYS[23], KEYS[24], KEYS[25]
local UNCLAIMED, CLAIMED, ITEMS, CLOSED, EXPIRY = KEYS[1], KEYS[2], KEYS[3], KEYS[6], KEYS[7]
local ATTEMPTS, WATCH, ROOM, PUTTERS, SCAN = KEYS[8], KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local CONTROL, DELAYED, LATER, EXPIRES, OP = KEYS[16], KEYS[19], KEYS[20], KEYS[21], KEYS[26]

local ids = redis.pcall('LRANGE', UNCLAIMED, ARGV[3] == '1' and -1 or -2, -1)
local id = ids[1]  -- none if the key is of a wrong type: the step says what is wrong
if not id or ids[2] then return nil end
local lock = UNCLAIMED .. ':lock:' .. id
if call('EXISTS', lock, CLOSED, CONTROL, ROOM, PUTTERS, KEYED, LINES, RING) > 0 then return nil end
local watch, behind = {}, ARGV[2] == '2'
if ARGV[6] ~= '' or behind then
  watch = redis.pcall('HMGET', WATCH, 'id', 'until', 'others')
  if watch.err or watch[3] or (watch[1] and watch[1] ~= ARGV[6]) or (behind and not watch[1]) then return nil end
end
if call('EXISTS', ATTEMPTS, DELAYED, LATER, EXPIRES) > 0 then
  if not delayed_beside(id) then return nil end
  if call('EXISTS', EXPIRES) == 1 then call('HLEN', KEYS[22]) end
end
if not bound_for(ARGV[1], ARGV[8]) then return nil end
if behind and (natural(watch[2]) or 0) <= now() then return nil end
local claims = call('LLEN', CLAIMED)
if claims == 0 then
  if call('EXISTS', EXPIRY, SCAN) > 0 then return nil end
else
  local left = call('PTTL', SCAN)
  if left <= 9500 and (left <= 0 or call('ZCARD', EXPIRY) ~= claims) then return nil end
  if call('ZRANGEBYSCORE', EXPIRY, '-inf', now(), 'LIMIT', 0, 1)[1] then return nil end
end
-- The other keys must be of their types.
call('LLEN', KEYS[9])
call('LLEN', KEYS[10])
if ARGV[3] ~= '1' and ARGV[10] == '1' then call('ZCARD', KEYS[4]) end
local contents = call('HGET', ITEMS, id)
if not contents then return nil end

-- The first write must be one that a server which is out of memory does not refuse.
call('LTRIM', UNCLAIMED, 0, -2)
if watch[1] then call('DEL', WATCH) end
if ARGV[4] == '0' then
  call('HDEL', ITEMS, id)
  call('ZREM', EXPIRY, id)
  return {'events', {id}, {contents}, {1}, 0}
end
call('SET', lock, ARGV[5], 'PX', ARGV[4])
call('LPUSH', CLAIMED, id)
call('ZADD', EXPIRY, now() + ARGV[4] + 0.0003, id)
call('PEXPIRE', EXPIRY, 3600000)
call('SET', OP, ARGV[1] .. ':' .. #id .. ':' .. id, 'PX', 300000)
return {'events', {id}, {contents}, {1}, 0}
