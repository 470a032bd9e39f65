-- Functions that the usual cases of all rooms share.

-- How many messages are delayed; nil if one is due, which is no usual case.
-- per_second: 1000 where the times are milliseconds, 1 for seconds
local function not_due(delayed, per_second)
  local first = redis.pcall('ZRANGE', delayed, 0, 0, 'WITHSCORES')
  local time = redis.call('TIME')
  if not first[2] or tonumber(first[2]) <= (time[1] + time[2] / 1000000) * per_second then return nil end
  return redis.call('ZCARD', delayed)
end

-- Has this client made this step, or a later one, or is its record damaged? That is no usual case.
-- last: the record of its latest step, or false
local function repeated(last, number)
  local made = last and string.match(last, '^(%d+):')
  return last and (not made or #made > 13 or tonumber(made) >= tonumber(number))
end
