-- Pause the queue, or resume it: our nodes reserve nothing meanwhile.
-- KEYS: those of the prelude
-- ARGV: 1 '1' to pause, '0' to resume, 2 '1' if the queue must have been created
-- Returns: {'done'} (that is new) | {'exists'} (it was so before) | {'missing'} | {'corrupt', why}
local bound, created = state(ARGV[2] == '1')
if not bound then return created end
if not created and call('EXISTS', PENDING, TASKS, SCHEDULED, CLOSED) == 0 then return {'missing'} end
tell()
if ARGV[1] == '1' then return {call('SETNX', PAUSED, 1) == 1 and 'done' or 'exists'} end
return {call('DEL', PAUSED) == 1 and 'done' or 'exists'}
