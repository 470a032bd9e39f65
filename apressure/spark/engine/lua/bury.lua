-- Move rows of a batch that Spark has processed without them to the dead-letter queue: those that could not be decoded.
-- Statistics count them as consumed already. Safe to repeat.
-- KEYS: those of the queue's prelude, 28 the group's state, 29 the list of the batch, from 30 on those of the dead-letter
--       queue, with 56 its reasons, and from 57 on the keys of which none may exist when that is created (each the :bound
--       of a queue that it collides with)
-- ARGV: 1 epoch, 2 number of the batch, 3 why they could not be decoded, 4 the most to move in this step
-- Returns: {'ok', how many are left} | {'fenced', current epoch} | {'dead', why they cannot be moved}
local GROUP, BATCH, field, first = KEYS[28], KEYS[29], 'bad-' .. ARGV[2], 30
local most = tonumber(ARGV[4])
local epoch = call('HGET', GROUP, 'epoch')
if epoch ~= ARGV[1] then return {'fenced', epoch or ''} end
local found = {}
for position, times in string.gmatch(call('HGET', GROUP, field) or '', '(%d+):(%d+)') do
  found[#found + 1] = {tonumber(position), tonumber(times)}
end
if #found == 0 then return {'ok', 0} end
local why = misfit(first)
if why then return {'dead', why} end

ignore_memory_limit()
table.sort(found, function(a, b) return a[1] < b[1] end)
local dead, attempts, values, left = {}, {}, {}, {}
for i = 1, #found do
  local position, times = unpack(found[i])
  local message = i <= most and call('LINDEX', BATCH, -1 - position)
  if message then
    dead[#dead + 1], attempts[#attempts + 1] = message, times
    values[#values + 1] = failure_field(message)
    values[#values + 1] = now() .. ':' .. times .. ':' .. ARGV[3]
  elseif i > most then
    left[#left + 1] = position .. ':' .. times
  end
end
local reasons = KEYS[first + 26]
if holds_reasons(reasons) then write_reasons(reasons, values) end
if #dead > 0 then
  keep_reasons(reasons, dead, attempts)
  bury(first, dead)
end
if #left > 0 then call('HSET', GROUP, field, table.concat(left, ' ')) else call('HDEL', GROUP, field) end
return {'ok', #left}
