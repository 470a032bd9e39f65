-- Note for how long a program waits for the reply to a request, or look whether it does.
-- KEYS: those of the prelude
-- ARGV: 1 the id of the request, 2 milliseconds from now on, 0 if it waits no more, or '' to look
-- Returns: 1 if it waits | 0
local waiting = wait_for_reply(ARGV[1])
if ARGV[2] == '' then return call('EXISTS', waiting) end
if ARGV[2] == '0' then
  call('DEL', waiting)
  return 0
end
call('SET', waiting, 1, 'PX', ARGV[2])
return 1
