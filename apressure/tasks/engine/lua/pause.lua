-- Pause the queue, or resume it: our nodes reserve nothing meanwhile.
-- KEYS: those of the prelude
-- ARGV: 1 '1' to pause, '0' to resume, 2 '1' if the queue must have been created
-- Returns: {'done'} (that is new) | {'exists'} (it was so before) | {'missing'} | {'corrupt', why}
local bound, created = state(ARGV[2] == '1')
if not bound then return created end
if not (created or is_known()) then return {'missing'} end
ignore_memory_limit()  -- nodes of a full server can be stopped, too
tell()
if ARGV[1] == '1' then return {call('HSET', CONTROL, 'paused', 1) == 1 and 'done' or 'exists'} end
return {call('HDEL', CONTROL, 'paused') == 1 and 'done' or 'exists'}
