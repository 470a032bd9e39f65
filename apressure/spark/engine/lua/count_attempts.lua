-- Count that Spark is about to read sealed batches. A repeated call counts once more.
-- KEYS: those of the queue's prelude, 24 the group's state
-- ARGV: 1 epoch, 2 number of the first of the batches, 3 number of the last one
-- Returns: {'ok', how often Spark has begun to read the one that it has read most often} | {'fenced', current epoch}
local GROUP, most = KEYS[24], 0
local epoch = call('HGET', GROUP, 'epoch')
if epoch ~= ARGV[1] then return {'fenced', epoch or ''} end
ignore_memory_limit()
for number = tonumber(ARGV[2]), tonumber(ARGV[3]) do
  local times = (tonumber(call('HGET', GROUP, 'tried-' .. number)) or 0) + 1
  call('HSET', GROUP, 'tried-' .. number, times)
  most = math.max(most, times)
end
return {'ok', most}
