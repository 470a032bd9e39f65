-- Make delayed events due now, those first that are due first, or those that are chosen: they go to the end of the line.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 how many at most, 4 '1' if the queue must have been created,
--       5... the ids of those that are chosen
-- Returns: {'pushed', number of events that are due now} | {'missing'} | {'corrupt', why}
local before = recall(ARGV[1], ARGV[2])
if before then return {'pushed', before} end
local bound, created = state(ARGV[4] == '1')
if not bound then return created end
if not created then check_types() end
local time, ids, scores = now(), {}, {}
if #ARGV > 4 then
  local dues = call('ZMSCORE', DELAYED, unpack(ARGV, 5))
  for i = 1, #dues do
    if dues[i] and tonumber(dues[i]) > time then ids[#ids + 1] = ARGV[4 + i] end
  end
else
  ids = call('ZRANGEBYSCORE', DELAYED, '(' .. time, '+inf', 'LIMIT', 0, math.min(tonumber(ARGV[3]), MOST_DUE))
end
if #ids > 0 then
  respect_memory_limit()
  for i = 1, #ids do
    scores[2 * i - 1], scores[2 * i] = time - 1 + 0.0003 * i, ids[i]  -- a fraction keeps their order
  end
  push('ZADD', DELAYED, scores)
  record(ARGV[1], #ids)
  promote()
  show_next()
end
return {'pushed', tostring(#ids)}
