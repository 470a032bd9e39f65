-- How long sealed batches are. Writes nothing.
-- KEYS: those of the queue's prelude, 23 the group's state, then the lists of batches, one after the other
-- ARGV: 1 epoch, 2 number of the first of the batches
-- Returns: {'ok', {for each batch: number of its first row, number of rows}} | {'fenced', epoch now} | {'gone', number}
local GROUP, first = KEYS[23], tonumber(ARGV[2])
local epoch = call('HGET', GROUP, 'epoch')
if epoch ~= ARGV[1] then return {'fenced', epoch or ''} end
local slices = {}
for i = 24, #KEYS do
  local number = first + i - 24
  local row, rows = call('HGET', GROUP, 'first-' .. number), call('LLEN', KEYS[i])
  if not row or rows == 0 then return {'gone', number} end
  slices[#slices + 1], slices[#slices + 2] = tonumber(row), rows
end
return {'ok', slices}
