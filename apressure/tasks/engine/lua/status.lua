-- Look at the queue. It changes nothing.
-- KEYS: those of the prelude
-- ARGV: none
-- Of the set of started tasks it counts those that run; of more than MOST_STARTED it looks at so many random ones.
-- Returns: {'status', the bound or -1 if the queue was not created, 1 if it is closed, since when it is paused or 0, pending,
--           scheduled, started, complete, failed, leased, reserved by all listeners, listeners, 1 if it is listed,
--           milliseconds until a lease ends or -1, milliseconds until the first scheduled task is due or -1,
--           how many have expired, {limits as `told_limits` returns them},
--           how many of the pending ones are parked, since they have a key}
local MOST_STARTED = 1000
local reserved = 0
local listeners = call('SMEMBERS', LISTENERS)
for i = 1, #listeners do
  local length = redis.pcall('LLEN', RESERVED .. listeners[i])
  if type(length) == 'number' then reserved = reserved + length end
end
local started = call('SCARD', STARTED) - #not_running(MOST_STARTED)
return {
  'status', natural(call('GET', BOUND)) or -1, call('EXISTS', CLOSED), paused_since(),
  call('LLEN', PENDING) + call('ZCARD', LINES),
  call('ZCARD', SCHEDULED), started, call('LLEN', COMPLETE), call('LLEN', FAILED), call('ZCARD', LEASES),
  reserved, #listeners, call('ZSCORE', QUEUES, NAME) and 1 or 0, due(), next_due(),
  natural(call('HGET', EXPIRED, 'count')) or 0, told_limits(), call('ZCARD', LINES),
}
