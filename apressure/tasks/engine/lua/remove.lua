-- Delete a task that has ended (specification: Delete Finished Task).
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 id
-- Returns: {'changed', 'deleted', 'other QUEUE' (it is in another queue), 'unfit STATUS' (it has not ended) or 'unknown'}
local before = recall(ARGV[1], ARGV[2])
if before then return {'changed', before} end
local id, outcome = ARGV[3], 'unknown'
local task = some_of(id, 'status', 'queue')
check_types()
if task[1] and task[2] and task[2] ~= NAME then
  outcome = 'other ' .. task[2]
elseif task[1] == 'complete' or task[1] == 'failed' then
  outcome = 'deleted'
elseif task[1] then
  outcome = 'unfit ' .. task[1]
end
if outcome == 'deleted' then
  ignore_memory_limit()
  forget(id)
  call('LREM', task[1] == 'complete' and COMPLETE or FAILED, 1, id)
  sweep(2)
end
record(ARGV[1], outcome)
return {'changed', outcome}
