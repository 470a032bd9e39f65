-- What the usual cases of all rooms share, beside 00_pace, 02_values and 04_line.
local call = redis.call

-- How many messages are delayed; nil if one is due, which is no usual case.
-- per_second: 1000 where the times are milliseconds, 1 for seconds
local function not_due(delayed, per_second)
  local first = redis.pcall('ZRANGE', delayed, 0, 0, 'WITHSCORES')
  local time = call('TIME')
  if not first[2] or tonumber(first[2]) <= (time[1] + time[2] / 1000000) * per_second then return nil end
  return call('ZCARD', delayed)
end

-- Has this client made this step, or a later one, or is its record damaged? That is no usual case.
-- last: the record of its latest step, or false
local function repeated(last, number)
  local made = last and string.match(last, '^(%d+):')
  return last and (not made or #made > 13 or tonumber(made) >= tonumber(number))
end

-- May one more message be got under the limits of the queue? See `allowance`; how many are in flight does not matter.
-- Returns: nil, if it has none | what `next` becomes then, '' for nothing | false, if this is no usual case
local function next_pace(control)
  local said = redis.pcall(
    'HMGET', control, 'count', 'per', 'burst', 'concurrency', 'next', 'paused', 'held', 'held_for', 'debt'
  )
  if said.err or said[6] or said[7] or said[8] or said[9] then return false end
  for i = 1, 4 do
    if said[i] and (#said[i] > 13 or not string.find(said[i], '^%d+$')) then return false end
  end
  local number, per, burst, last = tonumber(said[1] or 0), tonumber(said[2] or 0), tonumber(said[3] or ''), said[5]
  if number == 0 or per == 0 then
    if said[1] or said[2] or said[3] or last then return false end
    return said[4] and '' or nil
  end
  local most, _, due, interval = pace_of(number, per, burst, last)
  return most >= 1 and written(due + interval)
end
