-- Delete events that wait: those in the lines of their keys, then those that are next first; where none waits, those that
-- are delayed.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 how many at most, 4 '1' if the queue must have been created
-- Returns: {'pushed', number of events that were deleted} | {'missing'} | {'corrupt', why}
local before = recall(ARGV[1], ARGV[2])
if before then return {'pushed', before} end
local bound, created = state(ARGV[4] == '1')
if not bound then return created end
if not created then check_types() end
local limited = limits_flight()
ignore_memory_limit()
local most, contents = tonumber(ARGV[3]), call('HLEN', ITEMS)
local ids = first_parked(most)
local listed = #ids < most and call('LRANGE', UNCLAIMED, #ids - most, -1) or {}
if #ids + #listed > 0 then
  call('LTRIM', UNCLAIMED, 0, -#listed - 1)
  for i = 1, #listed do ids[#ids + 1] = listed[i] end
  push('HDEL', ITEMS, ids)
  local deleted = contents - call('HLEN', ITEMS)
  reply(ids, 'p')
  forget(ids)
  record(ARGV[1], deleted)
  show_next()
  wake_putters(bound)
  if limited and call('LLEN', UNCLAIMED) == 0 then wake_limited() end  -- it waits for new ones now
  return {'pushed', tostring(deleted)}
end
ids = call('ZRANGE', DELAYED, 0, ARGV[3] - 1)
if #ids > 0 then
  push('HDEL', LATER, ids)
  push('ZREM', DELAYED, ids)
  reply(ids, 'p')
  forget(ids)
  record(ARGV[1], #ids)
  wake_putters(bound)
end
return {'pushed', tostring(#ids)}
