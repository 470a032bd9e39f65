-- The usual case of push.lua for one event, with as few commands as possible: an open queue with room, nothing due,
-- nobody who waits for room, no event with a key, and a new id, of which nothing is known. In any other case it writes
-- nothing.
-- KEYS, ARGV, Returns: those of push.lua; nil for any other case
if #ARGV ~= 7 or ARGV[2] == '1' or ARGV[4] ~= '0' then return nil end
local KEYED, LINES, RING = KEYS[23], KEYS[24], KEYS[25]
local UNCLAIMED, ITEMS, CLOSED, ATTEMPTS, OP = KEYS[1], KEYS[3], KEYS[6], KEYS[8], KEYS[26]
local ROOM, PUTTERS, DELAYED, LATER, EXPIRES, id = KEYS[12], KEYS[13], KEYS[19], KEYS[20], KEYS[21], ARGV[6]

local later = 0
if call('EXISTS', CLOSED, ATTEMPTS, ROOM, PUTTERS, DELAYED, LATER, EXPIRES, KEYED, LINES, RING) > 0 then
  if call('EXISTS', CLOSED, ROOM, PUTTERS, KEYED, LINES, RING) > 0 then return nil end
  later = delayed_beside(id)
  if not later then return nil end
end
local bound = bound_for(ARGV[1], ARGV[5])
if not bound then return nil end
local length = call('LLEN', UNCLAIMED)
if bound > 0 and length + later >= bound then return nil end
-- The other keys must be of their types.
call('LLEN', KEYS[2])
call('ZCARD', KEYS[7])
call('LLEN', KEYS[9])
call('LLEN', KEYS[10])
if call('HEXISTS', ITEMS, id) == 1 then return nil end

call('PUBLISH', UNCLAIMED, id)
call('HSET', ITEMS, id, ARGV[7])
call(ARGV[3] == '1' and 'RPUSH' or 'LPUSH', UNCLAIMED, id)
call('SET', OP, ARGV[1] .. ':k', 'PX', 300000)
return {'pushed', 'k'}
