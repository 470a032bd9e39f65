-- Create the queue. Tasks that are in it already stay.
-- KEYS: those of the prelude
-- ARGV: 1 the bound
-- Returns: {'created'} | {'exists'}
check_types()
if call('SETNX', BOUND, ARGV[1]) == 0 then return {'exists'} end
call('DEL', CLOSED, CONTROL)
call('ZINCRBY', QUEUES, 0, NAME)
return {'created'}
