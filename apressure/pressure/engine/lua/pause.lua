-- Pause a queue: consumers of ours take no further message until it is resumed.
-- KEYS: those of the prelude, 28 resumed
-- ARGV: 1 uid, 2 sequence, 3 '1' if this repeats a step
-- Returns: 1 | 0 if it was paused already | {'missing'}
local before = recall_number(ARGV[2], ARGV[3])
if before then return before end
if call('EXISTS', BOUND) == 0 then return {'missing'} end
if is_paused() then return 0 end
ignore_memory_limit()  -- consumers of a full server can be stopped, too
call('DEL', KEYS[28])
call('HSET', CONTROL, 'paused', now() .. ':' .. ARGV[1])
record(ARGV[2], 1)
return 1
