-- Change the limits of a queue, and have clients that wait for messages look again. Safe to repeat.
-- KEYS: those of the prelude
-- ARGV: 1... names and values, as `set_limits` reads them, or as `count_spent` does
-- Returns: 1 | {'missing'}
if call('EXISTS', BOUND) == 0 then return {'missing'} end
ignore_memory_limit()  -- consumers of a full server can be slowed down, too
local spent = count_spent(1)
if spent and spent >= 0 then return 1 end  -- nobody gets anything sooner
if not spent then set_limits(1) end
wake(SOONER)
return 1
