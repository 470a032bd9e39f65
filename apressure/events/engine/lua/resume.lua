-- End a pause: all clients that wait for that wake. Those that listen to okq's channel learn of the events that wait.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 '1' if the queue must have been created
-- Returns: {'changed', '1', or '0' if it was not paused} | {'missing'} | {'corrupt', why}
local before = recall(ARGV[1], ARGV[2])
if before then return {'changed', before} end
local bound, created = state(ARGV[3] == '1')
if not bound then return created end
if call('EXISTS', UNCLAIMED, CLAIMED, ITEMS, CONSUMERS, BOUND, CONTROL) == 0 then return {'missing'} end
if not is_paused() then return {'changed', '0'} end
ignore_memory_limit()
publish(call('LRANGE', UNCLAIMED, -CHUNK, -1))
call('HDEL', CONTROL, 'paused')
wake_all(RESUMED)
record(ARGV[1], 1)
return {'changed', '1'}
