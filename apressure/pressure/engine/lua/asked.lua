-- Note for how long a program waits for the reply to a request, or look whether it does.
-- What is noted stays for an hour longer: a request that nothing is known of may be anybody's, and is handled.
-- KEYS: those of the prelude
-- ARGV: 1 the id of the request, 2 milliseconds from now on, 0 if it waits no more, or '' to look
-- Returns: 0 if it waits no more | 1
local key = wait_for_reply(ARGV[1])
if ARGV[2] ~= '' then
  call('SET', key, string.format('%.0f', now() + ARGV[2]), 'PX', ARGV[2] + 3600000)
  note_request(ARGV[1], now() + ARGV[2])
  return ARGV[2] == '0' and 0 or 1
end
local ends = redis.pcall('GET', key)
ends = type(ends) == 'string' and natural(ends)
return ends and ends <= now() and 0 or 1
