-- Close the queue: our clients put nothing more.
-- KEYS: those of the prelude
-- ARGV: 1 '1' if the queue must have been created
-- Returns: {'done'} | {'missing'} | {'corrupt', why} | {'exists'} (it was closed before)
local bound, created = state(ARGV[1] == '1')
if not bound then return created end
if not created then
  check_types()
  call('SET', BOUND, 0)
end
if is_closed() then return {'exists'} end
call('LPUSH', CLOSED, 0)
tell_all()
return {'done'}
