-- Put results into a queue, and acknowledge their inputs in another queue: both, or neither.
-- A unit is some deliveries and all their results: they are moved together. Units are moved in order, as far as there
-- is room. A step whose deliveries are no longer all in flight moves nothing, so that nothing is put twice.
-- KEYS: those of the prelude, of the destination; then those of the source, and 55 turns of the source; where messages
--       are moved that were redelivered, then 56 the reasons of the source's dead-letter queue
-- ARGV: 1 uid, 2 sequence, 3 '1' if this repeats a step, 4 '1' if the producer role was claimed,
--       5 token of the lease on the source, or of a member where it is shared, 6 '2' if the permit is long overdue (see
--       put.lua),
--       7 number of arguments that describe units, 8... runs of units: how many units, how many results each of them
--       has, how many ranges follow, and each range (first, last, bytes); a run of several units is one range, with one
--       delivery for each unit. Then all results
-- Returns: number of units moved (fewer than given: there is no room for the next one) | {'full'} |
--          {'room'} (both as put.lua) |
--          {'few', milliseconds} (there is room, and too little for the results of the next unit: try after that) |
--          {'large', bound} (the next unit has more results than the bound) | {'missing'} (the destination) |
--          {'corrupt', why} | {'closed'} (the destination) | {'lost'} (the lease, or deliveries in it) |
--          {'busy', role, holder, milliseconds of its lease or -1}
local uid, claimed, token, lost = ARGV[1], ARGV[4], ARGV[5], ARGV[6] == '2'
local last_run = 7 + ARGV[7]

-- A client that cannot go on keeps no claim.
local function finish(answer)
  switch_to(1)
  unclaim(PRODUCER, claimed)
  return answer
end

local before = recall_number(ARGV[2], ARGV[3])
if before then return before end
switch_to(28)
local _, source_wrong = check(CONSUMER)
if source_wrong then return finish(source_wrong[1] == 'missing' and {'lost'} or source_wrong) end
in_flight()  -- raises an error where a key is of the wrong type
-- (If another program overwrote the number of the next delivery, numbers no longer identify a message.)
local lease = call('HMGET', KEYS[LEASE + CONSUMER], 'token', 'next', 'hold', MEMBER .. token)
local me, shared = member_of(lease[4]), lease[1] == SHARED
if not natural(lease[2]) or shared and not me or not shared and lease[1] ~= token then return finish({'lost'}) end
local oldest, next_number = numbers()
switch_to(1)
local bound, wrong, length, permits = check(PRODUCER)
if wrong then return refuse(wrong, PRODUCER, claimed, '', bound) end
local closed, usual = survey(bound, true)
if not usual then length, permits = nil, nil end  -- healing may have changed them
local entered, refusal = enter(PRODUCER, claimed, '', usual)
if not entered then return refusal end

-- What can be moved: the units, their results, and what they came from.
local free = math.huge
if bound > 0 then
  length = length or call('LLEN', LIST)
  free = places(bound, length, permits, lost)
end
local units, results, freed, ranges, next_unit = 0, 0, 0, {}, 0
local i = 8
switch_to(28)
while i <= last_run do
  local given, each, count_of = tonumber(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local fit = given
  if each > 0 and free < math.huge then fit = math.min(given, math.floor((free - results) / each)) end
  for j = i + 3, i + 3 * count_of, 3 do
    local first, last, size = tonumber(ARGV[j]), tonumber(ARGV[j + 1]), tonumber(ARGV[j + 2])
    if fit > 0 and fit < given then
      last = first + fit - 1
      size = size_of(first, last, oldest, next_number)
    end
    if fit > 0 then
      local there = all_in_flight(first, last, oldest, next_number) and (not shared or owns(me, first, last))
      if not there then return finish({'lost'}) end
      local n = #ranges
      freed = freed + size
      if n > 0 and ranges[n - 1] + 1 == first then
        ranges[n - 1], ranges[n] = last, ranges[n] + size
      else
        ranges[n + 1], ranges[n + 2], ranges[n + 3] = first, last, size
      end
    end
  end
  units, results = units + fit, results + fit * each
  if fit < given then
    next_unit = each
    break
  end
  i = i + 3 + 3 * count_of
end
switch_to(1)
local bytes = 0
for j = last_run + 1, last_run + results do bytes = bytes + #ARGV[j] end

if bytes <= freed and closed == 0 then ignore_memory_limit() end  -- it makes at least as much room as it takes
call('SET', KEYS[HOLDER + PRODUCER], uid)  -- otherwise the first write: a server that is out of memory refuses it
unclaim(PRODUCER, claimed)
if closed == 1 then return {'closed'} end
if units == 0 then
  normalise(bound, length, permits, lost)
  if next_unit > bound then return {'large', bound} end
  if free > 0 then return {'few', 20} end
  if length < bound then return await_room(bound, length, permits) end
  return 0
end
if results > 0 then
  count(PRODUCER, results, bytes)  -- first: a user without the right to count puts nothing
  length = push('LPUSH', LIST, ARGV, last_run + 1, last_run + results)
end
switch_to(28)
forget_failures(ranges, 1, #ranges, KEYS[56])
acknowledge(ranges, 1, #ranges)
wake_limited()
if shared then
  -- The member's record may go on to name what was moved: that is no longer APART. Members may wait for the end.
  TURNS = KEYS[55]
  if call('EXISTS', CLOSED) == 1 and call('LLEN', LIST) == 0 then wake(TURNS, member_count()) end
elseif lease[3] ~= '1' and call('EXISTS', INFLIGHT, APART) == 0 then
  call('DEL', KEYS[LEASE + CONSUMER])  -- received by hand: the role goes back with the last message
  release(CONSUMER)
end
switch_to(1)
record(ARGV[2], units)
normalise(bound, length, permits, lost)
return units
