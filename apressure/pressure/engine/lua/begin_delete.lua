-- The first half of Delete: the queue stops existing, and all clients that wait on it wake up.
-- (A script with both halves would wake no client: Redis serves blocked clients when a script has ended.)
-- KEYS: those of the prelude, 28 resumed
-- ARGV: 1 sequence, 2 '1' if this repeats a step
-- Returns: 1 | {'missing'}
if recall(ARGV[1], ARGV[2]) then return 1 end
call('LLEN', NOT_FULL)  -- raises an error where it is of the wrong type, and so does the next line
call('LLEN', CLOSED)
if call('DEL', BOUND) == 0 then return {'missing'} end
if call('LPUSH', NOT_FULL, 0) > 1 then call('LTRIM', NOT_FULL, 0, 0) end
call('LPUSH', CLOSED, 0, 0)
if is_paused() then wake_all(KEYS[28]) end
if call('EXISTS', DELAYED, CONTROL) > 0 then wake(SOONER) end  -- as for a pause
reply_to_all()
record(ARGV[1], 1)
return 1
