-- Count that Spark is about to read a sealed batch. A repeated call counts once more.
-- KEYS: those of the queue's prelude, 28 the group's state
-- ARGV: 1 epoch, 2 number of the batch
-- Returns: {'ok', how often Spark has begun to read it} | {'fenced', current epoch}
local GROUP, field = KEYS[28], 'tried-' .. ARGV[2]
local state = call('HMGET', GROUP, 'epoch', field)
if state[1] ~= ARGV[1] then return {'fenced', state[1] or ''} end
ignore_memory_limit()
local times = (tonumber(state[2]) or 0) + 1
call('HSET', GROUP, field, times)
return {'ok', times}
