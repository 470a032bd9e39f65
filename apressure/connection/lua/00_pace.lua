-- The arithmetic of rates, for steps and for their usual cases.

-- Where a rate stands. Without a burst that was said, no window of that length has more than `number`.
-- last: the text of `next`, or nothing | debt: the time since when it is later than usual, in milliseconds, or nothing
-- Returns: how many messages may be handed out, milliseconds after which one more may be, what `next` is at least,
--          milliseconds from one message to the next, true if `next` is later than it can be: the clock was set back,
--          or the rate was slower; how many may come at once; by how many milliseconds `next` is ahead
-- (Fractions of an interval get lost in sums with times since 1970: so a quiet queue would never seem to have a whole
-- one.)
local function pace_of(number, per, burst, last, debt)
  local size = math.max(1, burst or math.floor(number / 50))
  local interval = per / (burst and number or number - size + 1)
  local time = redis.call('TIME')
  time = time[1] * 1000 + time[2] / 1000
  last = last and #last < 30 and string.find(last, '^%d+%.%d+$') and tonumber(last) or 0
  local ahead = math.max(last - time, 0)  -- for so long, what was handed out is ahead
  local most_ahead = size * interval
  if debt and debt <= time then most_ahead = math.max(most_ahead, last - debt) end
  local late = ahead > most_ahead
  if late then ahead = size * interval end
  local most = math.max(0, math.floor(size - ahead / interval + 0.000001))
  return most, math.max(1, math.ceil(ahead - (size - 1) * interval)), time + ahead, interval, late, size, ahead
end

-- The text of `next`, rounded up to microseconds: otherwise small errors of many steps would make one message more in a
-- window.
local function written(due)
  return string.format('%.3f', math.ceil(1000 * due) / 1000)
end
