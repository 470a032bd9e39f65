-- End a pause: all consumers that wait for that wake.
-- KEYS: those of the prelude, 28 resumed
-- ARGV: 1 sequence, 2 '1' if this repeats a step
-- Returns: 1 | 0 if it was not paused | {'missing'}
local before = recall_number(ARGV[1], ARGV[2])
if before then return before end
if call('EXISTS', BOUND) == 0 then return {'missing'} end
if not is_paused() then return 0 end
ignore_memory_limit()
call('HDEL', CONTROL, 'paused')
wake_all(KEYS[28])
record(ARGV[1], 1)
return 1
