-- Delete chosen dead letters, in order, before the step takes too long.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3... the dead letters, as they are in DEAD
-- Returns: {'moved', a letter for each one that was looked at: 'm' deleted, '0' it is gone} (fewer letters: this would
--          take too long)
local before = recall(ARGV[1], ARGV[2])
if before then return {'moved', before} end
local length = call('LLEN', DEAD)  -- raises an error where it is of the wrong type
ignore_memory_limit()
local letters, passed = {}, 0
for i = 3, #ARGV do
  if passed > MOST_PASSED then break end
  local at = call('LPOS', DEAD, ARGV[i], 'RANK', -1)
  if at then
    passed = passed + length - at
    call('LREM', DEAD, -1, ARGV[i])
  end
  letters[#letters + 1] = at and 'm' or '0'
end
record(ARGV[1], table.concat(letters))
return {'moved', table.concat(letters)}
