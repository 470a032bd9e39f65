-- Delete batches that Spark has processed. Safe to repeat.
-- KEYS: those of the queue's prelude, 28 the group's state, then the lists of the batches
-- ARGV: 1 epoch, 2 number of the first of the batches
-- Returns: number of the last committed batch | {'fenced', current epoch} | {'corrupt', why}
local GROUP, first = KEYS[28], tonumber(ARGV[2])
local epoch = call('HGET', GROUP, 'epoch')
if epoch ~= ARGV[1] then return {'fenced', epoch or ''} end
local state, wrong = naturals(GROUP, 'committed', 'sealed')
if wrong then return wrong end
ignore_memory_limit()
local last = first + #KEYS - 29
for i = 29, #KEYS do
  local number = first + i - 29
  call('UNLINK', KEYS[i])
  call(
    'HDEL', GROUP, 'first-' .. number, 'at-' .. number, 'size-' .. number, 'empty-' .. number, 'bad-' .. number,
    'tried-' .. number
  )
end
if (state[1] or 0) < last then call('HSET', GROUP, 'committed', last) end
if (state[2] or 0) < last then call('HSET', GROUP, 'sealed', last) end
return math.max(state[1] or 0, last)
