-- Look at a message without taking it.
-- KEYS: those of the prelude
-- ARGV: 1 index in the list: -1 is the next message to be got, 0 the newest
-- Returns: {'ok', message} | {'empty'} | {'missing'}
if call('EXISTS', BOUND) == 0 then return {'missing'} end
local message = call('LINDEX', LIST, ARGV[1])
if not message then return {'empty'} end
return {'ok', message}
