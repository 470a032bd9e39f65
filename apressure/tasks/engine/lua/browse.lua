-- Look at what is in a place of the queue, without taking anything: a page of it, in one of its two orders.
-- KEYS: those of the prelude
-- ARGV: 1 the place: 'waiting', 'in_flight', 'delayed' or 'parked', 2 '1' for the newest first,
--       3 how many to pass over, 4 the most to return, 5 the most bytes of each
-- Returns: {'browsed', how many there are, where the next page begins or -1, {messages, as `page_from` tells them}}
local place = ARGV[1]
local page = {
  newest = ARGV[2] == '1', passed = tonumber(ARGV[3]), most = tonumber(ARGV[4]), bytes = tonumber(ARGV[5]),
}

local function milliseconds(seconds)
  seconds = tonumber(seconds or nil)
  return told_time(seconds and 1000 * seconds)
end

-- Since when it is in flight, or waits: what its hash says, where that does not change meanwhile.
local function since(task)
  if place ~= 'in_flight' then return milliseconds(task[3]) end
  return task[5] == 'reserved' and milliseconds(task[6]) or task[5] == 'started' and milliseconds(task[7])
end

-- What is known of tasks: with the time when each is due, in `dues`.
local function rows_of(ids, dues)
  local rows, keys = {}, noted_keys(ids)
  for i = 1, #ids do
    local task = some_of(
      ids[i], 'parameters', 'attempts', 'created', 'node', 'status', 'updated', 'process_started', 'key'
    )
    local holder = place == 'in_flight' and task[4]
    rows[i] = {
      task[1] or false, 0, ids[i], natural(task[2] or nil) or 0, holder or false, since(task),
      dues and dues[i] or false, keys[i] or task[8] or false,
    }
  end
  return rows
end

local function waiting(first, last)
  return rows_of(listed(page, PENDING, first, last))
end

local function later(first, last)
  local ids, dues = ranked(page, SCHEDULED, first, last)
  for i = 1, #ids do dues[i] = milliseconds(dues[i]) end
  return rows_of(ids, dues)
end

local function parked(first, last)
  return rows_of(parked_ids((ranked(page, LINES, first, last))))
end

-- Nodes of the released blueque have no leases. Where listeners have more tasks than have leases, these are shown,
-- listener by listener; otherwise those with leases, in the order in which these end.
local function in_flight()
  local lists, lengths, total, leased = call('SMEMBERS', LISTENERS), {}, 0, call('ZCARD', LEASES)
  table.sort(lists, function(a, b) return page.newest == (a > b) and a ~= b end)
  for i = 1, #lists do
    local length = redis.pcall('LLEN', RESERVED .. lists[i])
    lengths[i] = type(length) == 'number' and length or 0
    total = total + lengths[i]
  end
  local function held(first, last)
    local ids, before = {}, 0
    for i = 1, #lists do
      local from, to = math.max(first, before) - before, math.min(last, before + lengths[i] - 1) - before
      local some = from <= to and listed(page, RESERVED .. lists[i], from, to) or {}
      for j = 1, #some do ids[#ids + 1] = some[j] end
      before = before + lengths[i]
    end
    return ids
  end
  return {'browsed', page_from(page, math.max(total, leased), function(first, last)
    local ids = total > leased and held(first, last) or ranked(page, LEASES, first, last)
    local dues = #ids > 0 and call('ZMSCORE', LEASES, unpack(ids)) or {}
    for i = 1, #ids do dues[i] = told_time(dues[i]) end
    return rows_of(ids, dues)
  end)}
end

if place == 'waiting' then return {'browsed', page_from(page, call('LLEN', PENDING), waiting)} end
if place == 'in_flight' then return in_flight() end
if place == 'delayed' then return {'browsed', page_from(page, call('ZCARD', SCHEDULED), later)} end
return {'browsed', page_from(page, call('ZCARD', LINES), parked)}
