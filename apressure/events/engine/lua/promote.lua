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
local ids = later_ones(DELAYED, now(), #ARGV > 4 and {unpack(ARGV, 5)}, math.min(tonumber(ARGV[3]), MOST_DUE))
if #ids > 0 then
  respect_memory_limit()
  make_due(DELAYED, ids)
  record(ARGV[1], #ids)
  promote()
  show_next()
end
return {'pushed', tostring(#ids)}
