-- Put results into a queue, and acknowledge their inputs in another queue: both, or neither.
-- A unit is some claims and all their results: they are moved together. Units are moved in order, as far as there is
-- room, up to the first one with a claim that is no longer the caller's. So nothing is put twice.
-- KEYS: those of the prelude, of the destination; then those of the source, without op
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 '1' if the destination must have been created,
--       4... units: each the number of its claims, the number of its results, its claims (id, token), and its results
--       (id, contents)
-- Returns: number of units moved (0: there is no room) | {'large', bound} (the first unit has more results than the
--          bound) | {'lost'} (a claim of the first unit) | {'closed'} (the destination; no claim of the first unit is
--          lost) | {'missing'} | {'corrupt', why}
local before = recall(ARGV[1], ARGV[2])
if before then return natural(before) or 0 end
local SOURCE = 27
switch_to(SOURCE)
local source_bound, wrong = state(false)
if not source_bound then return wrong end
check_types()
local limited = limits_flight()
switch_to(1)
local bound, created = state(ARGV[3] == '1')
if not bound then
  if created[1] ~= 'corrupt' then wake(ROOM) end  -- the next one that waits for room has to learn that, too
  return created
end
local closed = is_closed()
if not created then check_types() end
local room = bound > 0 and math.max(0, bound - occupied()) or math.huge

-- Does the caller still have this claim? A claim whose lock has expired, and that nobody has put back, is its last
-- owner's. Contents that are gone were acknowledged by somebody, or flushed.
local function mine(id, token)
  local holder = call('GET', lock_of(id))
  if holder and holder ~= token or call('HEXISTS', ITEMS, id) == 0 then return false end
  return holder or call('LPOS', CLAIMED, id, 'RANK', -1)
end

switch_to(SOURCE)
if closed then
  switch_to(1)
  wake(ROOM)  -- the next one that waits for room has to learn that, too
  switch_to(SOURCE)
  -- Another stage may have moved the rest, and closed the destination: to this one, its claims are lost.
  for j = 6, 5 + 2 * ARGV[4], 2 do
    if not mine(ARGV[j], ARGV[j + 1]) then return {'lost'} end
  end
  return {'closed'}
end
local units, inputs, ids, pairs_, bytes, freed, blocked, i = 0, {}, {}, {}, 0, 0, nil, 4
while i <= #ARGV and not blocked do
  local claims, results = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  local first_result = i + 2 + 2 * claims
  if #ids + results > room then
    blocked = 'room'
  else
    for j = i + 2, first_result - 1, 2 do
      if not mine(ARGV[j], ARGV[j + 1]) then blocked = 'lost' end
    end
  end
  if not blocked then
    for j = i + 2, first_result - 1, 2 do
      inputs[#inputs + 1] = ARGV[j]
      freed = freed + call('HSTRLEN', ITEMS, ARGV[j])
    end
    i = first_result + 2 * results
    for j = first_result, i - 1, 2 do
      ids[#ids + 1] = ARGV[j]
      pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = ARGV[j], ARGV[j + 1]
      bytes = bytes + #ARGV[j + 1]
    end
    units = units + 1
  elseif units == 0 and blocked == 'lost' then
    return {'lost'}
  elseif units == 0 and bound > 0 and results > bound then
    return {'large', bound}
  end
end
switch_to(1)
if blocked == 'room' then call('SET', PUTTERS, 1, 'PX', WATCH_MS) end
if units == 0 then return 0 end
if bytes <= freed then ignore_memory_limit() else respect_memory_limit() end  -- less than it takes away always fits
publish(ids)
push('HSET', ITEMS, pairs_)
push('LPUSH', UNCLAIMED, ids)
wake_putters(bound)
switch_to(SOURCE)
for j = 1, #inputs do call('LREM', CLAIMED, -1, inputs[j]) end
push('HDEL', ITEMS, inputs)
reply(inputs, 'n')
forget(inputs)
show_next()
if limited and call('LLEN', UNCLAIMED) > 0 then wake_limited() end
-- Consumers that wait for the end learn that it has come.
if is_closed() and call('LLEN', CLAIMED) == 0 then wake(TURNS) end
record(ARGV[1], units)
return units
