-- Look at what is in a place of the queue, without taking anything: a page of it, in one of its two orders.
-- KEYS: those of the prelude
-- ARGV: 1 the place: 'waiting', 'in_flight', 'delayed' or 'parked', 2 '1' for the newest first,
--       3 how many to pass over, 4 the most to return, 5 the most bytes of each
-- Returns: {'browsed', how many there are, where the next page begins or -1, {messages, as `page_from` tells them}} |
--          {'missing'}
local MOST_APART = 10000       -- of one consumer with more deliveries apart, only the others are shown

if call('EXISTS', BOUND) == 0 then return {'missing'} end
local place = ARGV[1]
local page = {
  newest = ARGV[2] == '1', passed = tonumber(ARGV[3]), most = tonumber(ARGV[4]), bytes = tonumber(ARGV[5]),
}

-- The messages of a list are told from each other by their contents only: so attempts are known where no message that
-- waits has been delivered before.
local function waiting(first, last)
  local rows, fresh = listed(page, LIST, first, last), redis.pcall('LLEN', REDELIVERED) == 0
  for i = 1, #rows do rows[i] = {rows[i], 0, false, fresh and 0, false, false, false, false} end
  return rows
end

local function later(first, last)
  local rows, scores = ranked(page, DELAYED, first, last)
  for i = 1, #rows do
    local message, times = look_later(rows[i])
    rows[i] = {message, 0, false, times, false, false, told_time(scores[i]), false}
  end
  return rows
end

-- Deliveries in flight as ranges of their numbers, ascending: {first, last, holder, when its lease ends, true if they
-- are in INFLIGHT}. (Fields that another program wrote into APART are numbers, too, or texts.)
local function flying(oldest, next_number)
  local lease, ranges = call('HMGET', KEYS[LEASE + CONSUMER], 'uid', 'deadline', 'token'), {}
  if lease[3] == SHARED then
    for _, member in pairs(members()) do
      for _, range in ipairs(member and member.ranges or {}) do
        ranges[#ranges + 1] = {range[1], range[2], member.uid, member.deadline}
      end
    end
  elseif call('HLEN', APART) <= MOST_APART then
    for _, field in ipairs(call('HKEYS', APART)) do ranges[#ranges + 1] = {field, field, lease[1], lease[2]} end
  end
  table.sort(ranges, function(a, b) return (tonumber(a[1]) or 0) < (tonumber(b[1]) or 0) end)
  if next_number > oldest then ranges[#ranges + 1] = {oldest, next_number - 1, lease[1], lease[2], true} end
  return ranges
end

local function in_hand()
  local oldest, next_number = numbers()
  local ranges, reach, at, before = flying(oldest, next_number), 0, 1, 0
  local function size(range)
    return range[1] == range[2] and 1 or range[2] - range[1] + 1
  end
  for i = 1, #ranges do reach = reach + size(ranges[i]) end
  local function read(first, last)
    local rows = {}
    for i = first, last do
      local range = ranges[page.newest and #ranges + 1 - at or at]
      while i - before >= size(range) do
        before, at = before + size(range), at + 1
        range = ranges[page.newest and #ranges + 1 - at or at]
      end
      local number, message, times = range[1], nil, 1
      if size(range) > 1 then number = page.newest and range[2] - (i - before) or range[1] + (i - before) end
      if range[5] then
        message = call('LINDEX', INFLIGHT, next_number - 1 - number)
      else
        message, times = look_apart(number)
      end
      rows[#rows + 1] = {
        message or false, 0, false, times or false, range[3] or false, false, told_time(range[4]), false,
      }
    end
    return rows
  end
  return {'browsed', page_from(page, in_flight(), read, reach)}
end

if place == 'waiting' then return {'browsed', page_from(page, call('LLEN', LIST), waiting)} end
if place == 'in_flight' then return in_hand() end
if place == 'delayed' then return {'browsed', page_from(page, delayed(), later)} end
return {'browsed', 0, -1, {}}
