-- What the steps of a queue of tasks share, behind what all rooms share in `connection/lua`: names for the keys, and
-- functions.
-- KEYS: 1 blueque_queues, 2 pending, 3 scheduled, 4 started, 5 listeners, 6 complete, 7 failed, 8 tasks, and ours:
--       9 leases, 10 nodes, 11 bound, 12 closed, 13 control, 14 op; the beginnings of keys: 15 of a task, 16 of a
--       listener's reserved list; the channels: 17 of the queue, 18 for room, 19 for schedulers;
--       and ours: 20 expired, 21 keyed, 22 lines, 23 ring
-- Nodes of the released blueque do not keep our keys: each of them may be missing or stale at any time. What Blueque's
-- own keys say counts. Other programs may write there, too: a task may be missing, and any field of it.
-- Scripts never roll back: so every script reads and checks everything before its first write.
local QUEUES, PENDING, SCHEDULED, STARTED, LISTENERS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local COMPLETE, FAILED, TASKS = KEYS[6], KEYS[7], KEYS[8]
-- LEASES: task -> when it is taken from the node of ours that has it. NODES: listener and a name -> until when it lives.
local LEASES, NODES, BOUND, CLOSED = KEYS[9], KEYS[10], KEYS[11], KEYS[12]
CONTROL, OP = KEYS[13], KEYS[14]
local TASK, RESERVED, CHANNEL, ROOM, SCHEDULERS = KEYS[15], KEYS[16], KEYS[17], KEYS[18], KEYS[19]
LIST, KEYED, LINES, RING = PENDING, KEYS[21], KEYS[22], KEYS[23]
local EXPIRED = KEYS[20]        -- in its field 'count', how many tasks have expired; a task's own field `expires` says when
local NAME = string.sub(TASKS, #'blueque_tasks_' + 1)

local LOOKED_AT = 100          -- how many leases, results and nodes a step looks at on the way
local LOST = 'the node that ran the task died, or was cut off'
local STALE_AFTER = 30000      -- milliseconds after which a listener that has left is looked at again
local AHEAD = 3600             -- seconds by which the clock of another host may be ahead of the server's
local MOST_DUE = 100           -- how many scheduled tasks a step has wait
local stamped
local given_up = {}             -- tasks that this step has given up: {id, parameters, how often they were tried}
local lost = {}                 -- tasks that this step is about to give up, the newest first: see `fail_lost`
local due_then = {}             -- how many tasks this step has scheduled for each time, as it was given

-- The time as Blueque writes it: seconds with a fraction.
local function stamp()
  if not stamped then
    local time = call('TIME')
    stamped = time[1] .. '.' .. string.sub('000000' .. time[2], -6)
  end
  return stamped
end

-- Check that the keys that a step works with are of their types: these commands raise an error where they are not.
local function check_types()
  call('LLEN', PENDING)
  call('ZCARD', SCHEDULED)
  call('SCARD', STARTED)
  call('SCARD', LISTENERS)
  call('LLEN', COMPLETE)
  call('LLEN', FAILED)
  call('LLEN', TASKS)
  call('ZCARD', LEASES)
  call('ZCARD', NODES)
  call('ZCARD', QUEUES)
  check_lines_types()
end

-- Check the state of the queue.
-- expected: the caller knows that the queue was created. | text: the value of BOUND (false: none), if it was read before
-- Returns: the bound (0: none), whether the queue was created | nil, an answer that says what is wrong
local function state(expected, text)
  if text == nil then text = call('GET', BOUND) end
  return bound_in(BOUND, text, expected)
end

-- Does a queue that was not created exist? It has had tasks, or was closed.
local function is_known()
  return call('EXISTS', PENDING, TASKS, SCHEDULED, CLOSED) > 0
end

-- Redis checks maxmemory only at the first write of a script. Nodes make room and must work on a full server: this
-- write changes nothing, and is never refused.
local function ignore_memory_limit()
  call('ZREM', LEASES, '')
end

-- Tell those who wait for something to do.
local function tell()
  call('PUBLISH', CHANNEL, 'look')
end

-- Tell those who wait for room.
local function tell_room(bound)
  if bound > 0 then call('PUBLISH', ROOM, 'room') end
end

-- How many tasks count towards the bound: those that wait, and those that are scheduled.
local function occupied()
  return call('LLEN', PENDING) + call('ZCARD', SCHEDULED) + call('ZCARD', LINES)
end

-- When a task is due that was given as '+' and milliseconds from now, or as seconds since 1970.
-- Returns: seconds, a text. A fraction keeps the order of tasks of this step that were given the same.
local function due_at(given)
  local delay, before = string.match(given, '^%+(%d+)$'), due_then[given] or 0
  due_then[given] = before + 1
  if not delay and before == 0 then return given end
  return string.format('%.7f', (delay and tonumber(stamp()) + delay / 1000 or tonumber(given)) + 0.0000005 * before)
end

-- Schedule tasks (specification: Schedule Task), and tell clients and schedulers that wait, if one of them is now the
-- first that is due.
-- dues: when each is due, and its id
local function schedule(dues)
  if #dues == 0 then return end
  local first, earliest = call('ZRANGE', SCHEDULED, 0, 0, 'WITHSCORES')[2], math.huge
  for i = 1, #dues, 2 do earliest = math.min(earliest, tonumber(dues[i])) end
  if not first or earliest < (tonumber(first) or math.huge) then
    tell()
    call('PUBLISH', SCHEDULERS, NAME)
  end
  push('ZADD', SCHEDULED, dues)
end

-- Some fields of a task, or an empty table.
local function some_of(id, ...)
  local values = redis.pcall('HMGET', TASK .. id, ...)
  return values.err and {} or values
end

-- When a task changed last; nil if its hash does not say so: the field is missing, no time, or far in the future.
local function changed_at(text)
  local time = tonumber(text or '')
  return time and time >= 0 and time <= tonumber(stamp()) + AHEAD and time or nil
end

-- Where a task stands that a step is asked to change, by its id.
-- at: nil, or when it changed last, as the caller has read it: one that has changed since is 'unknown'
-- Returns: its status, or nil if this queue has no such task; what the step returns if it does not change it: 'unknown',
--          'other QUEUE' (it is in another queue) or 'unfit STATUS' (its status does not allow this)
local function standing(id, at)
  local task = some_of(id, 'status', 'queue', 'updated', 'letter_added', 'created')
  local changed = task[4] and task[4] == task[3] and task[5] or task[3]  -- as `_ended` in `apressure/tasks/letters.py`
  if not task[1] or at and changed_at(at) ~= changed_at(changed) then return nil, 'unknown' end
  if task[2] and task[2] ~= NAME then return nil, 'other ' .. task[2] end
  return task[1], 'unfit ' .. task[1]
end

-- Have a task wait whose turn has come, if none does, and tell of it.
local function show_next()
  if restock() then tell() end
end

-- The keys of tasks, for `line_up`: of the last ones, as many as have a MiB of parameters together.
local function keys_of(ids, states, steps, last)
  local keys, bytes = {}, 0
  for i = last, 1, -1 do
    local letter, key = string.sub(states[i] or '', 1, 1), ''
    if letter == 'w' then
      key = string.sub(states[i], 2)
    elseif letter == '' then
      local task = some_of(ids[i], 'key', steps and 'parameters' or 'key')
      bytes = bytes + (steps and #(task[2] or '') or 0)
      if bytes > 1048576 and i < last then break end
      key = task[1] or steps and task[2] and key_at(steps, task[2]) or ''
    end
    keys[i] = key
  end
  return keys
end

-- Is a task still to be done?
local function is_undone(id)
  local status = some_of(id, 'status')[1]
  return status ~= nil and status ~= false and status ~= 'complete' and status ~= 'failed'
end

-- Free the places of tasks that nodes of the released blueque have ended, and show what may be handed out.
local function tend_lines()
  if call('EXISTS', LINES) == 0 then return end
  check_lines(is_undone)
  show_next()
end

-- A task leaves the hands of the node that has it, if any. (Of those in its list, the first ones end first.)
local function release(id, node, pid)
  if not node then return end
  call('LREM', RESERVED .. node, -1, id)
  call('ZREM', LEASES, id)
  if pid then call('SREM', STARTED, node .. ' ' .. pid .. ' ' .. id) end
end

-- Check what `release` works with, before the first write.
local function check_holder(node, pid)
  if node then call('LLEN', RESERVED .. node) end
  if pid then call('SCARD', STARTED) end
end

-- A task has ended: note how, and tell those who wait for it. Where a key is not of its type, an early command raises the
-- error, and the task goes on.
-- node, pid: where it was, if it was in the hands of a node
local function finish(id, status, field, text, node, pid)
  check_holder(node, pid)
  call('PUBLISH', TASK .. id, status)
  call('LPUSH', status == 'complete' and COMPLETE or FAILED, id)
  release(id, node, pid)
  call('HSET', TASK .. id, 'status', status, field, text, 'updated', stamp())
  leave_lines({id})
end

-- Several strings at once; false for each that is missing, or of another type.
-- Returns: the result of this step, if it was carried out before (see `recall`); the values of BOUND and CLOSED
local function begin(sequence, repeated)
  local values = call('MGET', OP, BOUND, CLOSED)
  local last = values[1] and natural(string.match(values[1], '^(%d+):'))
  local before
  if repeated == '1' or (last and last >= tonumber(sequence)) then before = recall(sequence, repeated) end
  return before, values[2], values[3]
end

-- Why an earlier attempt at a task has failed, where that is known.
local function reason(id)
  local kept = some_of(id, 'failure')[1]
  if not kept then return 'given back without an error' end
  kept = string.gsub(kept, '^\t', '')
  return (string.gsub(kept, '\t', ': '))
end

-- A task goes back, first in line, or to be due at a time. One that somebody has asked to cancel has failed instead.
-- due: as `due_at` returns it, or nil
local function put_back(id, node, pid, due)
  if call('HEXISTS', TASK .. id, 'cancel_requested') == 1 then
    finish(id, 'failed', 'error', 'cancelled', node, pid)
    call('HDEL', TASK .. id, 'token')
    return
  end
  check_holder(node, pid)
  call('PUBLISH', TASK .. id, due and 'scheduled' or 'pending')
  if due then schedule({due, id}) else call('RPUSH', PENDING, id) end
  release(id, node, pid)
  call('HSET', TASK .. id, 'status', due and 'scheduled' or 'pending', 'updated', stamp())
  if due then call('HSET', TASK .. id, 'eta', due) end
  call('HDEL', TASK .. id, 'token', 'reclaimed_node')
end

-- A listener is gone, unless a block of its name lives, or its list is not empty, or no list.
-- Returns: whether its list is empty
local function leave(listener)
  local left = redis.pcall('LLEN', RESERVED .. listener)
  if type(left) == 'table' or left > 0 then return false end
  local nodes, departed = call('ZRANGE', NODES, 0, -1), listener .. ' '
  for i = 1, #nodes do
    if nodes[i] ~= departed and string.sub(nodes[i], 1, #departed) == departed then return true end
  end
  call('ZREM', NODES, departed)
  if call('SREM', LISTENERS, listener) == 1 then call('ZINCRBY', QUEUES, -1, NAME) end
  return true
end

-- A block of ours has ended. While tasks are in its listener's list, a block without a name stands for those that have
-- ended: `bury` looks at that again.
local function depart(member)
  local listener = string.gsub(member, ' [^ ]*$', '')
  call('ZREM', NODES, member)
  if not leave(listener) then call('ZADD', NODES, now() + STALE_AFTER, listener .. ' ') end
end

-- Whether another node works on a task that one of the released blueque has reclaimed: those do not move it.
local function reclaimed(node)
  return node and call('SISMEMBER', LISTENERS, node) == 1
end

-- Add to an answer what this step tells of tasks that were tried too often, or that nobody may try again: see `told`.
local function with_given_up(answer)
  if #given_up > 0 then answer[#answer + 1] = {'dead', unpack(told(given_up))} end
  return answer
end

-- Take a task from a node that is gone: it goes back, or fails when `fail_lost` is called. Call it for the newest task
-- first: what goes back later comes before it.
-- policy: 'fail', or anything else to try again while it has attempts left
local function take_from(id, node, pid, policy, attempts, limit)
  local used_up = natural(limit) and natural(limit) > 0 and (natural(attempts) or 0) >= natural(limit)
  if policy == 'fail' or used_up then
    lost[#lost + 1] = {id, node, pid, attempts}
  else
    put_back(id, node, pid)
  end
end

-- Fail tasks whose nodes are gone, the oldest first: `requeue` keeps the order in which tasks have failed.
local function fail_lost()
  for i = #lost, 1, -1 do
    local id, node, pid, attempts = unpack(lost[i], 1, 4)
    finish(id, 'failed', 'error', LOST, node, pid)
    call('HDEL', TASK .. id, 'token')
    given_up[#given_up + 1] = {id, some_of(id, 'parameters')[1], natural(attempts) or 0}
  end
  lost = {}
end

-- Take tasks whose leases have ended from their nodes: of many, the newest ones. So nobody may reserve a task before
-- this has returned less than LOOKED_AT, or tasks would change their order. Returns: how many
local function reclaim()
  local due = call('ZRANGE', LEASES, now(), '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, LOOKED_AT)
  local nodes = {}
  if #due > 0 then tell() end
  for i = 1, #due do
    local id = due[i]
    local task = some_of(
      id, 'status', 'node', 'pid', 'on_orphan', 'attempts', 'max_attempts', 'reclaimed_node', 'watched'
    )
    local held = task[2] and (task[1] == 'reserved' or task[1] == 'started')
    if held and reclaimed(task[7]) then
      call('ZADD', LEASES, now() + 10000, id)
    elseif held and task[8] == task[2] then
      -- Its process may run, which only the host of its listener can tell: nodes there find it in that one's list.
      call('ZREM', LEASES, id)
    elseif held then
      take_from(id, task[2], task[1] == 'started' and task[3], task[4], task[5], task[6])
      nodes[task[2]] = true
    else
      call('ZREM', LEASES, id)
    end
  end
  fail_lost()
  for node in pairs(nodes) do leave(node) end
  return #due
end

-- Milliseconds after which a lease ends; -1 where there is none.
local function due()
  local first = call('ZRANGE', LEASES, 0, 0, 'WITHSCORES')
  return first[2] and math.max(1, math.ceil(tonumber(first[2]) - now())) or -1
end

-- Have scheduled tasks wait that are due, at the end of the line (specification: Enqueue Scheduled Tasks).
-- time: by which they are due, in seconds, a text; now by default | most: how many; 100 by default
-- Returns: how many wait now, how many were due
local function promote(time, most)
  time, most = time or stamp(), most or MOST_DUE
  local ids = call('ZRANGEBYSCORE', SCHEDULED, '-inf', time, 'LIMIT', 0, most)
  if #ids == 0 then return 0, 0 end
  local DONE = {reserved = true, started = true, complete = true, failed = true}
  local pending = {}
  tell()
  for i = 1, #ids do
    local task = some_of(ids[i], 'status', 'queue')
    -- It may have been deleted, or a node has it, or had it. A status that nobody knows is no reason to lose it.
    if (task[1] or task[2]) and not DONE[task[1]] then pending[#pending + 1] = ids[i] end
  end
  push('LPUSH', PENDING, pending)
  push('ZREM', SCHEDULED, ids)
  for i = 1, #pending do call('HSET', TASK .. pending[i], 'status', 'pending', 'updated', time) end
  return #pending, #ids
end

-- Milliseconds after which the first scheduled task is due, 0 if it is overdue; -1 where there is none.
-- time: seconds from which this counts, a text; now by default
local function next_due(time)
  local first = call('ZRANGE', SCHEDULED, 0, 0, 'WITHSCORES')[2]
  if not first then return -1 end
  local left = (tonumber(first) or 0) - tonumber(time or stamp())
  return math.ceil(1000 * math.max(0, math.min(left, 1000000000)))
end

-- Delete a task, and tell those who wait for it.
local function forget(id)
  call('PUBLISH', TASK .. id, 'deleted')
  call('DEL', TASK .. id)
  leave_lines({id})
end

-- Drop ids from the list of all tasks whose tasks were deleted. The others go to its other end, so that each step looks at
-- others: the list says nothing about the order.
local function sweep(most)
  local ids = most > 0 and redis.pcall('LRANGE', TASKS, -most, -1) or {}
  if #ids == 0 then return end  -- or another program wrote there
  local live = {}
  for i = #ids, 1, -1 do
    if call('EXISTS', TASK .. ids[i]) == 1 then live[#live + 1] = ids[i] end
  end
  call('LTRIM', TASKS, 0, -#ids - 1)
  push('LPUSH', TASKS, live)
end

-- Delete the oldest results, those that were noted before a time. One that does not say when lasts from now on.
-- before: seconds | Returns: how many were deleted
local function expire(list, status, before, most)
  local deleted = 0
  for _ = 1, most do
    local id = redis.pcall('LINDEX', list, -1)
    if type(id) ~= 'string' then break end  -- nothing is there, or it is no list
    local task = some_of(id, 'status', 'updated')
    if task[1] == status then
      local updated = changed_at(task[2])
      if updated and updated > before then break end
      if updated then
        forget(id)
        deleted = deleted + 1
      else
        call('HSET', TASK .. id, 'updated', stamp())
        call('LPUSH', list, id)
      end
    end
    call('RPOP', list)
  end
  if deleted > 0 then sweep(2 * deleted) end
  return deleted
end

-- Forget blocks of ours that gave no sign of life, and their listeners.
local function bury()
  local dead = call('ZRANGEBYSCORE', NODES, '-inf', now(), 'LIMIT', 0, LOOKED_AT)
  for i = 1, #dead do depart(dead[i]) end
end

-- Look at members of the set of started tasks, up to so many random ones. Returns: those whose process no longer runs the
-- task: it has ended, or gone back, or another one runs it. The released blueque leaves them when it works for a dead
-- node. (None if the set is of another type, or the user lacks the right to this command.)
local function not_running(most)
  local members, found = redis.pcall('SRANDMEMBER', STARTED, most), {}
  for i = 1, members.err and 0 or #members do
    local id = string.match(members[i], '^.- %d+ (.+)$')
    local task = id and some_of(id, 'status', 'node', 'pid')
    local runs = task and task[1] == 'started' and task[2] and task[3]
    if task and not (runs and task[2] .. ' ' .. task[3] .. ' ' .. id == members[i]) then
      found[#found + 1] = members[i]
    end
  end
  return found
end

-- Remove such members.
local function tidy_started()
  push('SREM', STARTED, not_running(LOOKED_AT))
end

-- Check, before the first write, that failed tasks may wait again.
-- Returns: the bound (0: none) | nil, an answer that says why they may not
local function state_to_revive(expected)
  local bound, created = state(expected)
  if not bound then return nil, created end
  if call('EXISTS', CLOSED) == 1 then return nil, {'closed'} end
  check_types()
  return bound
end

-- A failed task waits again, last in line.
local function revive(id)
  tell()
  call('PUBLISH', TASK .. id, 'pending')
  call('HSET', TASK .. id, 'status', 'pending', 'updated', stamp())
  call(
    'HDEL', TASK .. id, 'token', 'cancel_requested', 'reclaimed_node', 'attempts', 'error', 'failure', 'failed_attempt',
    'letter_added', 'node', 'pid', 'process_started', 'progress', 'progress_message', 'expires'
  )
  local key = some_of(id, 'key')[1]
  note_keys(key and {id, key} or {})
  call('LPUSH', PENDING, id)
end
