-- Change the limits of a queue, and have clients that wait for events look again. Or its bound. Safe to repeat.
-- KEYS: those of the prelude, then what tells of the end of the queue before
-- ARGV: 1 '1' if the queue must have been created, 2... names and values, as `set_limits` reads them, or as
--       `count_spent` or `bound_said` does
-- Returns: {'done'} | {'missing'} | {'corrupt', why}
local bound, created = state(ARGV[1] == '1')
if not bound then return created end
if call('EXISTS', UNCLAIMED, CLAIMED, ITEMS, CONSUMERS, BOUND, CONTROL) == 0 then return {'missing'} end
local new = bound_said(2)
if new then
  call('SET', BOUND, new)
  call('DEL', KEYS[#KEYS])
  wake_putters(tonumber(new))
  return {'done'}
end
ignore_memory_limit()  -- consumers of a full server can be slowed down, too
local spent = count_spent(2)
if spent and spent >= 0 then return {'done'} end  -- nobody gets anything sooner
if not spent then
  local limited = limits_keys()
  set_limits(2)
  renew_lines(limited)
  show_next()
end
wake_limited()
return {'done'}
