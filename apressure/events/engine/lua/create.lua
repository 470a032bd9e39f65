-- Create the queue. Events that okq has pushed already stay.
-- KEYS: those of the prelude, then what tells of the end of the queue before
-- ARGV: 1 the bound
-- Returns: {'created'} | {'exists'}
check_types()
if call('SETNX', BOUND, ARGV[1]) == 0 then return {'exists'} end
call('DEL', CLOSED, TURNS, ROOM, KEYS[#KEYS])
if call('DEL', CONTROL) == 1 then  -- those that wait for the end of a pause, or for limits, wake
  wake_all(RESUMED)
  wake(END)
end
return {'created'}
