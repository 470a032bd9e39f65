-- Change the limits of the queue, and have nodes that wait look again. Or its bound. Safe to repeat.
-- KEYS: those of the prelude
-- ARGV: 1 '1' if the queue must have been created, 2... names and values, as `set_limits` reads them, or as
--       `count_spent` or `bound_said` does
-- Returns: {'done'} | {'missing'} | {'corrupt', why}
local bound, created = state(ARGV[1] == '1')
if not bound then return created end
if not (created or is_known()) then return {'missing'} end
local new = bound_said(2)
if new then
  call('PUBLISH', ROOM, 'room')
  call('SET', BOUND, new)
  return {'done'}
end
ignore_memory_limit()  -- nodes of a full server can be slowed down, too
if ARGV[2] ~= 'spent' or string.sub(ARGV[3], 1, 1) == '-' then tell() end  -- otherwise nobody gets anything sooner
if not count_spent(2) then
  local limited = limits_keys()
  set_limits(2)
  renew_lines(limited)
  show_next()
end
return {'done'}
