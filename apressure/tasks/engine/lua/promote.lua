-- Make scheduled tasks due now, those first that are due first, or those that are chosen: they go to the end of the line.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 how many at most, 4 '1' if the queue must have been created,
--       5... the ids of those that are chosen
-- Returns: {'changed', number of tasks that are due now} | {'missing'} | {'corrupt', why}
local before = recall(ARGV[1], ARGV[2])
if before then return {'changed', before} end
local bound, created = state(ARGV[4] == '1')
if not bound then return created end
check_types()
local time, dues = stamp(), {}
local ids = later_ones(SCHEDULED, time, #ARGV > 4 and {unpack(ARGV, 5)}, math.min(tonumber(ARGV[3]), MOST_DUE))
if #ids > 0 then
  respect_memory_limit()
  for i = 1, #ids do  -- a fraction keeps their order
    dues[2 * i - 1], dues[2 * i] = string.format('%.7f', tonumber(time) - 0.001 + 0.0000005 * i), ids[i]
  end
  push('ZADD', SCHEDULED, dues)
  record(ARGV[1], #ids)
  promote()
  show_next()
end
return {'changed', tostring(#ids)}
