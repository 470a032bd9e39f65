-- Delete events that wait, those that are next first; where none waits, those that are delayed.
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
local ids, contents = call('LRANGE', UNCLAIMED, -tonumber(ARGV[3]), -1), call('HLEN', ITEMS)
if #ids > 0 then
  push('HDEL', ITEMS, ids)
  local deleted = contents - call('HLEN', ITEMS)
  forget(ids)
  call('LTRIM', UNCLAIMED, 0, -#ids - 1)
  record(ARGV[1], deleted)
  wake_putters(bound)
  if limited and call('LLEN', UNCLAIMED) == 0 then wake_limited() end  -- it waits for new ones now
  return {'pushed', tostring(deleted)}
end
ids = call('ZRANGE', DELAYED, 0, ARGV[3] - 1)
if #ids > 0 then
  push('HDEL', LATER, ids)
  push('ZREM', DELAYED, ids)
  forget(ids)
  record(ARGV[1], #ids)
  wake_putters(bound)
end
return {'pushed', tostring(#ids)}
