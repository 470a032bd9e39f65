-- Enqueue a task again that has failed: last in line, with new attempts.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 id, 4 '1' if the queue must have been created
-- Returns: {'changed', 'retried', 'full', 'other QUEUE' (it is in another queue), 'unfit STATUS' (it has not failed) or
--           'unknown'} | {'closed'} | {'missing'} | {'corrupt', why}
local before = recall(ARGV[1], ARGV[2])
if before then return {'changed', before} end
local bound, created = state(ARGV[4] == '1')
if not bound then return created end
if call('EXISTS', CLOSED) == 1 then return {'closed'} end
check_types()
local id, outcome = ARGV[3], 'unknown'
local task = some_of(id, 'status', 'queue')
if task[1] and task[2] and task[2] ~= NAME then
  outcome = 'other ' .. task[2]
elseif task[1] == 'failed' then
  outcome = (bound > 0 and call('LLEN', PENDING) >= bound) and 'full' or 'retried'
elseif task[1] then
  outcome = 'unfit ' .. task[1]
end
if outcome == 'retried' then
  respect_memory_limit()
  revive(id)
  call('LREM', FAILED, -1, id)
end
if outcome ~= 'full' then record(ARGV[1], outcome) end
return {'changed', outcome}
