-- Look after the queue: enqueue the tasks that are due (specification: Enqueue Scheduled Tasks), take tasks from nodes
-- that are gone, forget these, and started tasks that do not run, and delete results that have expired.
-- KEYS: those of the prelude
-- ARGV: 1 the time in seconds, by which tasks are due, 2 seconds for which results are kept or 0, 3 how many tasks at most
-- Returns: {'tended', number of tasks that were enqueued, 1 if there is more to do, when the next task is due in seconds
--           or '', milliseconds until a lease ends or -1}; behind it, if tasks were given up: {'dead', ...}
check_types()
ignore_memory_limit()
local DONE = {reserved = true, started = true, complete = true, failed = true}
local time, most, moved, more = ARGV[1], tonumber(ARGV[3]), 0, false
local ids = call('ZRANGEBYSCORE', SCHEDULED, '-inf', time, 'LIMIT', 0, most)
if #ids > 0 then
  local pending = {}
  tell()
  for i = 1, #ids do
    local fields = redis.pcall('HMGET', TASK .. ids[i], 'status', 'queue')
    -- It may have been deleted, or a node has it, or had it. A status that nobody knows is no reason to lose it.
    if not fields.err and (fields[1] or fields[2]) and not DONE[fields[1]] then
      call('HSET', TASK .. ids[i], 'status', 'pending', 'updated', time)
      pending[#pending + 1] = ids[i]
    end
  end
  push('ZREM', SCHEDULED, ids)
  push('LPUSH', PENDING, pending)
  moved = #pending
  more = #ids == most
end
more = reclaim() == LOOKED_AT or more
bury()
tidy_started()
if tonumber(ARGV[2]) > 0 then
  local before = tonumber(stamp()) - tonumber(ARGV[2])
  more = expire(COMPLETE, 'complete', before, LOOKED_AT) == LOOKED_AT or more
  more = expire(FAILED, 'failed', before, LOOKED_AT) == LOOKED_AT or more
end
local first = call('ZRANGE', SCHEDULED, 0, 0, 'WITHSCORES')
return with_given_up({'tended', moved, more and 1 or 0, first[2] or '', due()})
