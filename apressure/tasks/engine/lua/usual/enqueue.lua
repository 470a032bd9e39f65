-- The usual case of enqueue.lua for one task that is not scheduled, with as few commands as possible: an open queue with
-- room, no task with a key, and no scheduled task that is due. In any other case it writes nothing.
-- KEYS, ARGV, Returns: those of enqueue.lua; nil for any other case
if #ARGV ~= 6 or ARGV[2] == '1' or ARGV[6] ~= '' then return nil end
local PENDING, SCHEDULED, OP, id = KEYS[2], KEYS[3], KEYS[14], ARGV[4]
local values = call('MGET', OP, KEYS[11], KEYS[12])
local bound = values[2]
if values[3] or repeated(values[1], ARGV[1]) then return nil end
local later = call('EXISTS', SCHEDULED) == 0 and 0 or not_due(SCHEDULED, 1)
if not later or call('EXISTS', KEYS[21], KEYS[22], KEYS[23]) > 0 then return nil end
if bound then
  if #bound > 13 or not string.find(bound, '^%d+$') then return nil end
  if tonumber(bound) > 0 and call('LLEN', PENDING) + later >= tonumber(bound) then return nil end
elseif ARGV[3] == '1' then
  return nil
end

local time = call('TIME')
local stamp = time[1] .. '.' .. string.sub('000000' .. time[2], -6)
local TASKS = KEYS[8]
local NAME = string.sub(TASKS, 15)
call('PUBLISH', KEYS[17], 'look')
call('LPUSH', PENDING, id)  -- an error here, and nothing has been written
call(
  'HSET', KEYS[15] .. id, 'status', 'pending', 'queue', NAME, 'parameters', ARGV[5], 'created', stamp, 'updated', stamp
)
redis.pcall('ZINCRBY', KEYS[1], 0, NAME)
redis.pcall('LPUSH', TASKS, id)
call('SET', OP, ARGV[1] .. ':1', 'PX', 300000)
return {'put', '1'}
