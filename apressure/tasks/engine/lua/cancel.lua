-- Cancel a task: it fails if it waits; otherwise the node that has it is asked.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 id
-- Returns: {'changed', 'cancelled', 'requested', 'other QUEUE' (it is in another queue), 'unfit STATUS' (it has ended, or
--           its status is unknown) or 'unknown'}
local before = recall(ARGV[1], ARGV[2])
if before then return {'changed', before} end
local id, outcome = ARGV[3], 'unknown'
local task = some_of(id, 'status', 'queue')
check_types()
if task[1] and task[2] and task[2] ~= NAME then
  outcome = 'other ' .. task[2]
elseif task[1] == 'reserved' or task[1] == 'started' then
  outcome = 'requested'
elseif task[1] == 'pending' or task[1] == 'scheduled' then
  ignore_memory_limit()
  local removed = task[1] == 'pending' and call('LREM', PENDING, 1, id) or call('ZREM', SCHEDULED, id)
  -- A node of the released blueque may have taken it, and not noted that yet.
  outcome = removed > 0 and 'cancelled' or 'requested'
elseif task[1] then
  outcome = 'unfit ' .. task[1]
end
if outcome == 'cancelled' then
  finish(id, 'failed', 'error', 'cancelled')
elseif outcome == 'requested' then
  call('PUBLISH', TASK .. id, 'cancel')
  call('HSET', TASK .. id, 'cancel_requested', stamp())
end
record(ARGV[1], outcome)
return {'changed', outcome}
