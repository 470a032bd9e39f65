-- Look after the queue: enqueue the tasks that are due (specification: Enqueue Scheduled Tasks), take tasks from nodes
-- that are gone, forget these, and started tasks that do not run, and delete results that have expired.
-- KEYS: those of the prelude
-- ARGV: 1 the time in seconds, by which tasks are due, or '' for the server's, 2 seconds for which results are kept or 0, 3 how many tasks at most
-- Returns: {'tended', number of tasks that were enqueued, 1 if there is more to do, milliseconds from that time until the
--           next task is due or -1, milliseconds until a lease ends or -1}; behind it, if tasks were given up: {'dead', ...}
check_types()
ignore_memory_limit()
local time, most = ARGV[1] ~= '' and ARGV[1] or stamp(), tonumber(ARGV[3])
local moved, looked = promote(time, most)
local more = looked == most
more = reclaim() == LOOKED_AT or more
tend_lines()
bury()
tidy_started()
if tonumber(ARGV[2]) > 0 then
  local before = tonumber(stamp()) - tonumber(ARGV[2])
  more = expire(COMPLETE, 'complete', before, LOOKED_AT) == LOOKED_AT or more
  more = expire(FAILED, 'failed', before, LOOKED_AT) == LOOKED_AT or more
end
return with_given_up({'tended', moved, more and 1 or 0, next_due(time), due()})
