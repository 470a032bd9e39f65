-- Look at what is in a place of the queue, without taking anything: a page of it, in one of its two orders.
-- KEYS: those of the prelude
-- ARGV: 1 the place: 'waiting', 'in_flight', 'delayed' or 'parked', 2 '1' for the newest first,
--       3 how many to pass over, 4 the most to return, 5 the most bytes of each
-- Returns: {'browsed', how many there are, where the next page begins or -1, {messages, as `page_from` tells them}}
local place = ARGV[1]
local page = {
  newest = ARGV[2] == '1', passed = tonumber(ARGV[3]), most = tonumber(ARGV[4]), bytes = tonumber(ARGV[5]),
}

-- What is known of events: with the time when each is due, as a function tells it of its place among them.
local function rows_of(ids, due)
  if #ids == 0 then return ids end
  local contents, attempts = call('HMGET', place == 'delayed' and LATER or ITEMS, unpack(ids)), {}
  if call('EXISTS', ATTEMPTS) == 1 then attempts = call('HMGET', ATTEMPTS, unpack(ids)) end
  local rows, keys = {}, noted_keys(ids)
  for i = 1, #ids do
    local times = (natural(attempts[i] or nil) or 0) + (place == 'in_flight' and 1 or 0)
    rows[i] = {contents[i], 0, ids[i], times, false, false, due and told_time(due(i)) or false, keys[i]}
  end
  return rows
end

local function waiting(first, last)
  return rows_of(listed(page, UNCLAIMED, first, last))
end

local function claimed(first, last)
  local ids = listed(page, CLAIMED, first, last)
  return rows_of(ids, function(i)
    local left = call('PTTL', lock_of(ids[i]))
    return left >= 0 and now() + left or nil
  end)
end

local function later(first, last)
  local ids, scores = ranked(page, DELAYED, first, last)
  return rows_of(ids, function(i) return scores[i] end)
end

local function parked(first, last)
  return rows_of(parked_ids((ranked(page, LINES, first, last))))
end

if place == 'waiting' then return {'browsed', page_from(page, call('LLEN', UNCLAIMED), waiting)} end
if place == 'in_flight' then return {'browsed', page_from(page, call('LLEN', CLAIMED), claimed)} end
if place == 'delayed' then return {'browsed', page_from(page, call('ZCARD', DELAYED), later)} end
return {'browsed', page_from(page, call('ZCARD', LINES), parked)}
