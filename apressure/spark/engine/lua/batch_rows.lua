-- Which rows sealed batches have. Writes nothing.
-- KEYS: those of the queue's prelude, 28 the group's state, then the lists of consecutive batches
-- ARGV: 1 epoch, 2 number of the first of the batches
-- Returns: {'ok', {for each batch: number of its first row, number of rows}} | {'fenced', current epoch} |
--          {'gone', number of a batch} | {'corrupt', why}
local GROUP, first = KEYS[28], tonumber(ARGV[2])
local epoch = call('HGET', GROUP, 'epoch')
if epoch ~= ARGV[1] then return {'fenced', epoch or ''} end
local rows_of = {}
for i = 29, #KEYS do
  local number = first + i - 29
  local found, wrong = naturals(GROUP, 'first-' .. number)
  if wrong then return wrong end
  local row, rows = found[1], call('LLEN', KEYS[i])
  if not row or rows == 0 and not call('HGET', GROUP, 'empty-' .. number) then return {'gone', number} end
  rows_of[#rows_of + 1], rows_of[#rows_of + 2] = row, rows
end
return {'ok', rows_of}
