-- The usual case of settle_shared.lua for a member that acknowledges some of its deliveries, with as few commands as
-- possible: these follow each other, and so do all that it has, and the queue is calm (see `calm_bound`). In any other
-- case it writes nothing.
-- KEYS, ARGV, Returns: those of settle_shared.lua; nil for any other case
if ARGV[3] == '1' or ARGV[5] == '1' or #ARGV ~= 11 or ARGV[8] ~= '3' or #KEYS > 29 then return nil end
local COUNT, BYTES, APART, OP = KEYS[9], KEYS[10], KEYS[20], KEYS[27]
local first, last = tonumber(ARGV[9]), tonumber(ARGV[10])
if last - first > 99 then return nil end

local me = live_member(ARGV[1], ARGV[2])
if not me then return nil end
local from, to = string.match(me[7], '^(%d+)%-(%d+)$')
from, to = natural(from), natural(to)
if not (from and to) or first < from or last > to or last >= me.next then return nil end
local bound = calm_bound()
if not bound or call('HSTRLEN', APART, last) == 0 then return nil end
if not has_right_permit(bound) then return nil end

local numbers, left = {}, {}
for number = first, last do numbers[#numbers + 1] = number end
if from < first then left[1] = from .. '-' .. first - 1 end
if last < to then left[#left + 1] = last + 1 .. '-' .. to end
me[7] = table.concat(left, ' ')
local settled = call('HDEL', APART, unpack(numbers))
call('INCRBY', COUNT, settled)
call('INCRBY', BYTES, ARGV[11])
write_lease(ARGV[1], me)
call('SET', OP, ARGV[4] .. ':' .. settled, 'PX', 300000)
return settled
