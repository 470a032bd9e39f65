-- Look at the queue. It changes nothing.
-- KEYS: those of the prelude
-- ARGV: none
-- Returns: {'status', the bound or -1 if the queue was not created, 1 if it is closed, 1 if it is paused, pending,
--           scheduled, started, complete, failed, leased, reserved by all listeners, listeners, 1 if it is listed,
--           milliseconds until a lease ends or -1}
local reserved = 0
local listeners = call('SMEMBERS', LISTENERS)
for i = 1, #listeners do
  local length = redis.pcall('LLEN', RESERVED .. listeners[i])
  if type(length) == 'number' then reserved = reserved + length end
end
return {
  'status', natural(call('GET', BOUND)) or -1, call('EXISTS', CLOSED), call('EXISTS', PAUSED), call('LLEN', PENDING),
  call('ZCARD', SCHEDULED), call('SCARD', STARTED), call('LLEN', COMPLETE), call('LLEN', FAILED), call('ZCARD', LEASES),
  reserved, #listeners, call('ZSCORE', QUEUES, NAME) and 1 or 0, due(),
}
