-- Delete batches that Spark has processed. Safe to repeat.
-- KEYS: those of the queue's prelude, 24 the group's state, then the lists of the batches
-- ARGV: 1 epoch, 2 number of the first of the batches
-- Returns: number of the last committed batch | {'fenced', current epoch}
local GROUP, first = KEYS[24], tonumber(ARGV[2])
local state = call('HMGET', GROUP, 'epoch', 'committed', 'sealed')
if state[1] ~= ARGV[1] then return {'fenced', state[1] or ''} end
ignore_memory_limit()
local last = first + #KEYS - 25
for i = 25, #KEYS do
  local number = first + i - 25
  call('UNLINK', KEYS[i])
  call(
    'HDEL', GROUP, 'first-' .. number, 'at-' .. number, 'size-' .. number, 'empty-' .. number, 'bad-' .. number,
    'tried-' .. number
  )
end
if tonumber(state[2] or 0) < last then call('HSET', GROUP, 'committed', last) end
if tonumber(state[3] or 0) < last then call('HSET', GROUP, 'sealed', last) end
return math.max(tonumber(state[2] or 0), last)
