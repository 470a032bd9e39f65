-- Close the queue: our clients put nothing more.
-- KEYS: those of the prelude
-- ARGV: 1 '1' if the queue must have been created
-- Returns: {'done'} | {'missing'} | {'corrupt', why} | {'exists'} (it was closed before)
local bound, created = state(ARGV[1] == '1')
if not bound then return created end
if call('EXISTS', CLOSED) == 1 then return {'exists'} end
tell()
call('PUBLISH', ROOM, 'closed')
if not created then call('SET', BOUND, 0) end
call('SET', CLOSED, 1)
return {'done'}
