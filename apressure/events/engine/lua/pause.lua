-- Pause the queue: clients of ours take no further event until it is resumed. An okq does not know of that.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 '1' if the queue must have been created, 4 the client
-- Returns: {'changed', '1', or '0' if it was paused already} | {'missing'} | {'corrupt', why}
local before = recall(ARGV[1], ARGV[2])
if before then return {'changed', before} end
local bound, created = state(ARGV[3] == '1')
if not bound then return created end
if is_paused() then return {'changed', '0'} end
if call('EXISTS', UNCLAIMED, CLAIMED, ITEMS, CONSUMERS, BOUND) == 0 then return {'missing'} end
ignore_memory_limit()  -- consumers of a full server can be stopped, too
call('DEL', RESUMED)
call('HSET', CONTROL, 'paused', now() .. ':' .. ARGV[4])
record(ARGV[1], 1)
return {'changed', '1'}
