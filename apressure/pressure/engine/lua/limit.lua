-- Change the limits of a queue, and have clients that wait for messages look again. Safe to repeat.
-- KEYS: those of the prelude
-- ARGV: 1... names and values, as `set_limits` reads them
-- Returns: 1 | {'missing'}
if call('EXISTS', BOUND) == 0 then return {'missing'} end
ignore_memory_limit()  -- consumers of a full server can be slowed down, too
set_limits(1)
wake(SOONER)
return 1
