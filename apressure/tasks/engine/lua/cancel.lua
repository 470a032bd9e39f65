-- Cancel a task: it fails if it waits; otherwise the node that has it is asked.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 id
-- Returns: {'changed', 'cancelled', 'requested', or what `standing` says of one that has ended, or is not here}
local before = recall(ARGV[1], ARGV[2])
if before then return {'changed', before} end
local id, status, outcome = ARGV[3], standing(ARGV[3])
check_types()
if status == 'reserved' or status == 'started' then
  ignore_memory_limit()
  outcome = 'requested'
elseif status == 'pending' or status == 'scheduled' then
  ignore_memory_limit()
  local removed = status == 'pending' and call('LREM', PENDING, 1, id) or call('ZREM', SCHEDULED, id)
  if removed == 0 and is_parked(id) then removed = 1 end  -- `finish` takes it from its line
  -- A node of the released blueque may have taken it, and not noted that yet.
  outcome = removed > 0 and 'cancelled' or 'requested'
end
if outcome == 'cancelled' then
  finish(id, 'failed', 'error', 'cancelled')
  show_next()
elseif outcome == 'requested' then
  call('PUBLISH', TASK .. id, 'cancel')
  call('HSET', TASK .. id, 'cancel_requested', stamp())
end
record(ARGV[1], outcome)
return {'changed', outcome}
