-- Note which rows of a slice of a batch cannot be decoded, and how often each of them was tried.
-- KEYS: those of the queue's prelude, 28 the group's state
-- ARGV: 1 number of the batch, 2 position of the slice's first row (0 is the oldest of the batch), 3 position behind its
--       last row, 4... positions of the rows that cannot be decoded
-- Returns: {'ok', how often the row was tried that was tried least, or 0 if all can be decoded}
local GROUP, field, begin, upto = KEYS[28], 'bad-' .. ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local before, tried, entries, least = call('HGET', GROUP, field), {}, {}, 0
for position, times in string.gmatch(before or '', '(%d+):(%d+)') do
  if tonumber(position) >= begin and tonumber(position) < upto then
    tried[position] = tonumber(times)
  else
    entries[#entries + 1] = position .. ':' .. times
  end
end
for i = 4, #ARGV do
  local times = (tried[ARGV[i]] or 0) + 1
  if least == 0 or times < least then least = times end
  entries[#entries + 1] = ARGV[i] .. ':' .. times
end
if #entries > 0 then
  call('HSET', GROUP, field, table.concat(entries, ' '))
elseif before then
  call('HDEL', GROUP, field)  -- the query has another schema now
end
return {'ok', least}
