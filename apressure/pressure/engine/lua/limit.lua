-- Change the limits of a queue, and have clients that wait for messages look again. Or its bound. Safe to repeat.
-- KEYS: those of the prelude
-- ARGV: 1... names and values, as `set_limits` reads them, or as `count_spent` or `bound_said` does
-- Returns: 1 | {'missing'} | {'corrupt', why}
local new = bound_said(1)
if new then
  local bound, wrong, length, permits = check(PRODUCER)
  if wrong then return wrong end
  call('SET', BOUND, new)
  if new == '0' and delayed() > 0 then wake(ROOM) end
  -- Nobody has the permit of a full queue: where there is room now, a producer that works step by step may wait for it.
  normalise(tonumber(new), length, permits, bound > 0 and length >= bound)
  return 1
end
if call('EXISTS', BOUND) == 0 then return {'missing'} end
ignore_memory_limit()  -- consumers of a full server can be slowed down, too
local spent = count_spent(1)
if spent and spent >= 0 then return 1 end  -- nobody gets anything sooner
if not spent then set_limits(1) end
wake(SOONER)
return 1
