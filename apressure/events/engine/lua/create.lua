-- Create the queue. Events that okq has pushed already stay.
-- KEYS: those of the prelude
-- ARGV: 1 the bound
-- Returns: {'created'} | {'exists'}
check_types()
if call('SETNX', BOUND, ARGV[1]) == 0 then return {'exists'} end
call('DEL', CLOSED, TURNS, ROOM)
if call('DEL', PAUSED) == 1 then wake_paused(RESUMED) end
return {'created'}
