-- End the queue, before its tasks are deleted; or forget it, when they are.
-- KEYS: those of the prelude, then the schedules, and the dedup ids
-- ARGV: 1 '1' to end it: it must exist, '0' to forget it
-- Returns: {'done'} | {'missing'}
local exists = call('EXISTS', BOUND, PENDING, SCHEDULED, COMPLETE, FAILED, LEASES, LINES) > 0 or call('ZSCORE', QUEUES, NAME)
if ARGV[1] == '1' then
  if not exists then
    call('DEL', CLOSED, CONTROL)
    return {'missing'}
  end
  tell()
  call('PUBLISH', ROOM, 'deleted')
  call('DEL', BOUND, CLOSED, CONTROL, EXPIRED, KEYS[#KEYS - 1], KEYS[#KEYS])
else
  call('DEL', TASKS, STARTED, KEYED, LINES, RING)
  -- Blocks of ours that wait in a queue that was not created note the next sign of life in five seconds.
  for _, member in ipairs(call('ZRANGE', NODES, 0, -1)) do depart(member) end
  if call('SCARD', LISTENERS) == 0 and call('EXISTS', BOUND, PENDING, SCHEDULED) == 0 then call('ZREM', QUEUES, NAME) end
end
return {'done'}
