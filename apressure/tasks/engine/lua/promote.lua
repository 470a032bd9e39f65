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
local time, ids, dues = stamp(), {}, {}
if #ARGV > 4 then
  local found = call('ZMSCORE', SCHEDULED, unpack(ARGV, 5))
  for i = 1, #found do
    if found[i] and tonumber(found[i]) > tonumber(time) then ids[#ids + 1] = ARGV[4 + i] end
  end
else
  ids = call('ZRANGEBYSCORE', SCHEDULED, '(' .. time, '+inf', 'LIMIT', 0, math.min(tonumber(ARGV[3]), MOST_DUE))
end
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
