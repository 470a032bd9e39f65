-- The usual case of pop.lua for one event, where one is asked for or no more wait, or for none, with as few commands as
-- possible: an open queue without a pause, limits or keys, no attempts before and no time when it expires, nothing due,
-- nobody who waits for room, and in line at most this client (but where there is nothing), no claim that has expired, and
-- none that is not in the index. In any other case it writes nothing.
-- KEYS, ARGV, Returns: those of pop.lua; nil for any other case
if ARGV[2] == '1' then return nil end
local KEYED, LINES, RING = KEYS[23], KEYS[24], KEYS[25]
local UNCLAIMED, CLAIMED, ITEMS, CLOSED, EXPIRY = KEYS[1], KEYS[2], KEYS[3], KEYS[6], KEYS[7]
local ATTEMPTS, ROOM, PUTTERS, SCAN = KEYS[8], KEYS[12], KEYS[13], KEYS[14]
local CONTROL, DELAYED, LATER, EXPIRES, OP = KEYS[16], KEYS[19], KEYS[20], KEYS[21], KEYS[26]

local ids = redis.pcall('LRANGE', UNCLAIMED, ARGV[3] == '1' and -1 or -2, -1)
if ids.err or ids[2] then return nil end  -- of a wrong type: the step says what is wrong
local id, lock = ids[1], UNCLAIMED .. ':lock:' .. (ids[1] or '')
if call('EXISTS', lock, CLOSED, CONTROL, ROOM, PUTTERS, KEYED, LINES, RING) > 0 then return nil end
local watch, place, behind = {}, ARGV[6], ARGV[2] == '2'
if behind or place ~= '' and id then
  watch = redis.pcall('HMGET', WATCH, 'id', 'until', 'others')
  if watch.err or (watch[3] and id) or (watch[1] and watch[1] ~= place) or (behind and not watch[1]) then return nil end
end
if call('EXISTS', ATTEMPTS, DELAYED, LATER, EXPIRES) > 0 then
  if not (id and delayed_beside(id)) then return nil end
  if call('EXISTS', EXPIRES) == 1 then call('HLEN', KEYS[22]) end
end
local bound, created = bound_for(ARGV[1], ARGV[8])
if not bound then return nil end
if behind and (natural(watch[2]) or 0) <= now() then return nil end
local claims, scanned = call('LLEN', CLAIMED), false
if claims == 0 then
  if call('EXISTS', EXPIRY, SCAN) > 0 then return nil end
else
  local left = call('PTTL', SCAN)
  if left == -2 and claims <= 100 then  -- it is missing: no claim has been looked at
    local known = call('ZMSCORE', EXPIRY, unpack(call('LRANGE', CLAIMED, 0, -1)))
    for i = 1, claims do
      if not known[i] then return nil end
    end
    scanned = true
  elseif left <= 9500 and (left <= 0 or call('ZCARD', EXPIRY) ~= claims) then
    return nil
  end
  if call('ZRANGEBYSCORE', EXPIRY, '-inf', now(), 'LIMIT', 0, 1)[1] then return nil end
end
-- The other keys must be of their types.
call('LLEN', KEYS[9])
call('LLEN', TURNS)
if ARGV[3] ~= '1' and ARGV[10] == '1' then call('ZCARD', KEYS[4]) end
local contents = call('HGET', ITEMS, id or '')
if id and not contents then return nil end

-- The first write must be one that a server which is out of memory does not refuse.
if id then call('LTRIM', UNCLAIMED, 0, -2) else call('LREM', CLOSED, 0, '') end
if scanned then
  call('PEXPIRE', EXPIRY, 3600000)
  call('SET', SCAN, 1000, 'PX', 10000)
end
if not id then
  local again = -1
  if claims > 0 then
    local first = call('ZRANGE', EXPIRY, 0, 0, 'WITHSCORES')[2]
    again = math.min(first and tonumber(first) - now() or 10000, call('ZCARD', EXPIRY) == claims and 10000 or 500)
    again = math.max(1, math.ceil(again))
  end
  created = created and 1 or 0
  local left = place ~= '' and watched_by_another(place)
  if left then return {'turn', left, created} end
  return {place == '' and 'empty' or 'watch', again, created}
end
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
