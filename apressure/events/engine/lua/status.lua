-- Look at the queue. It changes nothing.
-- KEYS: those of the prelude
-- ARGV: none
-- Returns: {'status', the bound or -1 if the queue was not created, waiting, in flight, contents, registered consumers,
--           1 if it is closed, dead letters, milliseconds until a claim may expire or -1, since when it is paused or 0, delayed,
--           milliseconds until the first of those is due or -1, how many have expired, limits as `told_limits` says,
--           how many of those that wait are parked, since they have a key}
local time = call('TIME')
return {
  'status', natural(call('GET', BOUND)) or -1, call('LLEN', UNCLAIMED) + call('ZCARD', LINES),
  call('LLEN', CLAIMED), call('HLEN', ITEMS),
  call('ZCOUNT', CONSUMERS, '(' .. (tonumber(time[1]) - STALE_S), '+inf'), call('EXISTS', CLOSED), call('LLEN', DEAD),
  expiry(), paused_since(), call('ZCARD', DELAYED), next_due(),
  natural(call('HGET', EXPIRED, 'count')) or 0, told_limits(), call('ZCARD', LINES),
}
