-- How many messages are delayed; nil if one is due, which is no usual case.
-- per_second: 1000 where the times are milliseconds, 1 for seconds
local function not_due(delayed, per_second)
  local first = redis.pcall('ZRANGE', delayed, 0, 0, 'WITHSCORES')
  local time = redis.call('TIME')
  if not first[2] or tonumber(first[2]) <= (time[1] + time[2] / 1000000) * per_second then return nil end
  return redis.call('ZCARD', delayed)
end
