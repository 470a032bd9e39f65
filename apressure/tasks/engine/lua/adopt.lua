-- Take over the tasks of a listener that has died (its process is gone from this host): they go back, or fail; those whose
-- processes still run get a lease, and stay for as long as they run.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 listener, 4 'fail' or 'retry', 5 milliseconds of the leases,
--       6 '1' if no process has its number, 7... tasks in its list, the newest first (id, '1' if its process runs, the
--       token that it had)
-- Returns: {'moved', 'number that went back or failed:number that run'}; behind it, if tasks were given up:
--          {'dead', ...}
local before = recall(ARGV[1], ARGV[2])
if before then return {'moved', before} end
check_types()
ignore_memory_limit()
local listener, policy, moved, kept = ARGV[3], ARGV[4], 0, 0
if #ARGV > 6 then tell() end
for i = 7, #ARGV, 3 do
  local id = ARGV[i]
  local task = some_of(id, 'status', 'node', 'pid', 'attempts', 'max_attempts', 'reclaimed_node', 'on_orphan', 'token')
  local held = task[1] == 'reserved' or task[1] == 'started'
  if (task[8] or '') ~= ARGV[i + 2] or task[1] and (held and task[2] ~= listener or reclaimed(task[6])) then
    -- Another node has it, or this one again: a process that has the number now.
  elseif held and ARGV[i + 1] == '1' then
    call('ZADD', LEASES, now() + tonumber(ARGV[5]), id)
    if not task[8] then call('HSET', TASK .. id, 'watched', listener) end  -- one of the released blueque
    if policy == 'fail' then call('HSET', TASK .. id, 'on_orphan', policy) end
    kept = kept + 1
  elseif call('LREM', RESERVED .. listener, 1, id) == 1 then
    if held or task[1] == 'pending' then  -- it died before it noted that it has the task
      local on_orphan = task[7] or policy
      take_from(id, listener, task[1] == 'started' and task[3], on_orphan, task[4], task[5])
      moved = moved + 1
    else
      call('ZREM', LEASES, id)
    end
  end
end
fail_lost()
call('ZREMRANGEBYSCORE', NODES, '-inf', now())
local nodes = call('ZRANGE', NODES, 0, -1)
for i = 1, ARGV[6] == '1' and #nodes or 0 do
  if string.sub(nodes[i], 1, #listener + 1) == listener .. ' ' then call('ZREM', NODES, nodes[i]) end
end
leave(listener)
record(ARGV[1], moved .. ':' .. kept)
return with_given_up({'moved', moved .. ':' .. kept})
