-- Return messages of a group's latest batch to the queue, first in line. The group's query is refused from now on, and so
-- is every other one whose checkpoint ends here: others may read its messages again. Safe to repeat.
-- KEYS: those of the queue's prelude, 28 the group's state, 29 the list of the batch
-- ARGV: 1 epoch, 2 number of the batch, 3 number of the last batch that may exist, 4 the most to move
-- Returns: {'ok', messages moved, messages left in the batch} | {'fenced', current epoch} | {'missing'} | {'corrupt', why}
local GROUP, BATCH = KEYS[28], KEYS[29]
local epoch = call('HGET', GROUP, 'epoch')
if epoch ~= ARGV[1] then return {'fenced', epoch or ''} end
local bound, wrong, length = check(CONSUMER)
if wrong then return wrong end
ignore_memory_limit()
-- After the first move the batch is incomplete, so no query may read it; `until` says where giving back ends.
call('HSETNX', GROUP, 'until', call('HGET', GROUP, 'committed') or 0)
call('HDEL', GROUP, 'bytes', 'size-' .. ARGV[2], 'bad-' .. ARGV[2], 'tried-' .. ARGV[2])
call('HSET', GROUP, 'committed', ARGV[3], 'sealed', ARGV[3], 'giving', ARGV[2])
local staged = call('LLEN', BATCH)
local portions, moved, bytes = pop(math.min(staged, tonumber(ARGV[4])), 'LPOP', BATCH)
for i = 1, #portions do call('RPUSH', LIST, unpack(portions[i])) end
shift(-moved)
if moved > 0 then count(CONSUMER, -moved, -bytes) end  -- (Redis takes no -0)
normalise(bound, length + moved)
if moved == staged then
  call('HDEL', GROUP, 'first-' .. ARGV[2], 'at-' .. ARGV[2], 'empty-' .. ARGV[2])
  call('HSET', GROUP, 'giving', ARGV[2] - 1)
  if tonumber(ARGV[2]) - 1 <= tonumber(call('HGET', GROUP, 'until')) then call('HDEL', GROUP, 'giving', 'until') end
end
return {'ok', moved, staged - moved}
