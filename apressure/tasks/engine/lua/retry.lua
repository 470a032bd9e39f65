-- Enqueue a task again that has failed: last in line, with new attempts.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 id, 4 '1' if the queue must have been created,
--       5 nothing, or when it failed ('' if its hash did not say): it stays where it has failed again since
-- Returns: {'changed', 'retried', 'full', or what `standing` says of one that has not failed, or is not here}
--          | {'closed'} | {'missing'} | {'corrupt', why}
local before = recall(ARGV[1], ARGV[2])
if before then return {'changed', before} end
local bound, refused = state_to_revive(ARGV[4] == '1')
if not bound then return refused end
local id, status, outcome = ARGV[3], standing(ARGV[3], ARGV[5])
if status == 'failed' and bound > 0 and occupied() >= bound then
  return {'changed', 'full'}
elseif status == 'failed' then
  outcome = 'retried'
  respect_memory_limit()
  revive(id)
  call('LREM', FAILED, -1, id)
end
record(ARGV[1], outcome)
return {'changed', outcome}
