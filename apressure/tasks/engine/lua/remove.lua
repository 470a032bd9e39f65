-- Delete a task that has ended (specification: Delete Finished Task).
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 id, 4 '1' if it must have failed,
--       5 nothing, or when it failed ('' if its hash did not say): it stays where it has failed again since
-- Returns: {'changed', 'deleted', or what `standing` says of one that has not ended, or is not here}
local before = recall(ARGV[1], ARGV[2])
if before then return {'changed', before} end
local id, status, outcome = ARGV[3], standing(ARGV[3], ARGV[5])
check_types()
ignore_memory_limit()
if status == 'failed' or status == 'complete' and ARGV[4] ~= '1' then
  outcome = 'deleted'
  forget(id)
  call('LREM', status == 'complete' and COMPLETE or FAILED, 1, id)
  sweep(2)
end
record(ARGV[1], outcome)
return {'changed', outcome}
