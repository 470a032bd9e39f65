-- The usual case of settle.lua for one acknowledgement, with as few commands as possible: an open queue without limits
-- or keys, no attempts before and no time when it expires, nothing due, nobody who waits for room, a claim with this token, no claim
-- that has expired, and no claims to look for. In any other case it writes nothing.
-- KEYS, ARGV, Returns: those of settle.lua; nil for any other case
if #ARGV ~= 6 or ARGV[2] == '1' or ARGV[3] ~= 'ack' then return nil end
local KEYED, LINES, RING = KEYS[23], KEYS[24], KEYS[25]
local UNCLAIMED, CLAIMED, ITEMS, CLOSED, EXPIRY = KEYS[1], KEYS[2], KEYS[3], KEYS[6], KEYS[7]
local ATTEMPTS, ROOM, PUTTERS, SCAN, OP, id = KEYS[8], KEYS[12], KEYS[13], KEYS[14], KEYS[26], ARGV[5]
local CONTROL, DELAYED, LATER, EXPIRES = KEYS[16], KEYS[19], KEYS[20], KEYS[21]

if call('EXISTS', CLOSED, CONTROL, ATTEMPTS, ROOM, PUTTERS, DELAYED, LATER, EXPIRES, KEYED, LINES, RING) > 0 then
  if call('EXISTS', CLOSED, CONTROL, ROOM, PUTTERS, KEYED, LINES, RING) > 0 then return nil end
  if not delayed_beside(id) then return nil end
end
if not bound_for(ARGV[1], '') then return nil end
local lock = UNCLAIMED .. ':lock:' .. id
local holder = call('MGET', lock)[1]
if holder and ARGV[6] ~= '' and holder ~= ARGV[6] then return nil end
local claims, indexed = call('LLEN', CLAIMED), call('ZCARD', EXPIRY)
if claims > 1 then
  local left = call('PTTL', SCAN)
  if left <= 9500 and (left <= 0 or indexed ~= claims or not call('ZMSCORE', EXPIRY, id)[1]) then return nil end
  if call('ZRANGEBYSCORE', EXPIRY, '-inf', now(), 'LIMIT', 0, 1)[1] then return nil end
end
-- The other keys must be of their types.
call('LLEN', UNCLAIMED)
call('HLEN', ITEMS)
call('LLEN', KEYS[9])
call('LLEN', KEYS[10])

-- The first write must be one that a server which is out of memory does not refuse.
if call('LREM', CLAIMED, -1, id) == 0 then return nil end
call('HDEL', ITEMS, id)
call('ZREM', EXPIRY, id)
call('DEL', lock)
call('SET', OP, ARGV[1] .. ':1', 'PX', 300000)
if claims == 1 then call('DEL', EXPIRY, SCAN) end
return {'settled', '1'}
