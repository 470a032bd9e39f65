-- Note what happens to reserved tasks: they start, go on, end or go back (specification: Task Started, Task Completed
-- Successfully, Task Failed).
-- KEYS: those of the prelude
-- ARGV: 1 '1' if this repeats a step, 2 seconds for which results are kept or 0, 3... for each task: 'start', 'progress',
--       'complete', 'fail', 'nack' (counts as an attempt), 'later:' and milliseconds (so does this: it is due after these)
--       or 'unseen' (does not); id; token, or '' if the released blueque has reserved it; listener; the process, nothing,
--       the result, the error, or why it goes back; the number of fields that are set, too; the names and values of these
-- Returns: {'settled', a letter for each task: '1' done, '0' others have it, or it has ended, '-' there is no such task}
-- The token makes a repeat safe: a claim that has ended changes nothing, and it is known who ended it.
-- What is in lists and sets of many tasks is written at the end, for all of them at once.
local kinds, nodes, i = {}, {}, 3
while i <= #ARGV do
  kinds[string.match(ARGV[i], '^%l*')] = true
  if ARGV[i] ~= 'start' and ARGV[i] ~= 'progress' then nodes[ARGV[i + 3]] = true end
  i = i + 6 + 2 * tonumber(ARGV[i + 5])
end
for node in pairs(nodes) do call('LLEN', RESERVED .. node) end
if kinds['complete'] then call('LLEN', COMPLETE) end
if kinds['fail'] then call('LLEN', FAILED) end
if kinds['nack'] or kinds['unseen'] then call('LLEN', PENDING) end
if kinds['later'] then call('ZCARD', SCHEDULED) end
if next(nodes) then check_lines_types() end
ignore_memory_limit()

local letters, back, ended, freed, checked = {}, false, 0, false, false
local complete, failed, leases, added, removed, done = {}, {}, {}, {}, {}, {}

-- Write what has gathered.
local function write()
  push('LPUSH', COMPLETE, complete)
  push('LPUSH', FAILED, failed)
  push('ZREM', LEASES, leases)
  push('SADD', STARTED, added)
  push('SREM', STARTED, removed)
  complete, failed, leases, added, removed = {}, {}, {}, {}, {}
end

i = 3
while i <= #ARGV do
  local how, id, token, node, value = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local first, task, letter = i + 6, TASK .. id, '1'
  i = first + 2 * tonumber(ARGV[i + 5])
  local is = redis.pcall('HMGET', task, 'status', 'node', 'token', 'pid', 'reclaimed_node')
  local held = is[1] == 'reserved' or is[1] == 'started'
  local mine = is[2] == node and (is[3] or '') == token
  if not is[1] then
    letter = '-'
  elseif ARGV[1] == '1' and token ~= '' and (some_of(id, 'returned')[1] == token or (not held and mine)) then
    -- The reply to this very step was lost. (A write, so that a WAIT that follows waits for replicas.)
    call('HSET', task, 'updated', stamp())
  elseif not (held and mine) or (token ~= '' and reclaimed(is[5])) then
    letter = '0'
  else
    local member = is[1] == 'started' and is[4] and node .. ' ' .. is[4] .. ' ' .. id
    if not checked and how ~= 'progress' and (member or how == 'start') then
      write()
      call('SCARD', STARTED)  -- an error here, and this task and those that follow are as they were
      checked = true
    end
    if how == 'start' then
      call('PUBLISH', task, 'started')
      if member and is[4] ~= value then
        write()
        call('SREM', STARTED, member)
      end
      added[#added + 1] = node .. ' ' .. value .. ' ' .. id
      call('HSET', task, 'status', 'started', 'pid', value, 'updated', stamp(), unpack(ARGV, first, i - 1))
    elseif how == 'progress' then
      call('PUBLISH', task, 'progress')
      call('HSET', task, 'updated', stamp(), unpack(ARGV, first, i - 1))
    else
      freed = true
      if first < i then call('HSET', task, unpack(ARGV, first, i - 1)) end
      local succeeds, delay = how == 'complete', string.match(how, '^later:(%d+)$')
      local tries_again = how == 'nack' or delay
      local tried = succeeds and {} or some_of(id, 'attempts', 'max_attempts')
      local attempts, limit = natural(tried[1]) or 0, natural(tried[2]) or 0
      if succeeds or how == 'fail' or (tries_again and limit > 0 and attempts >= limit) then
        local status = succeeds and 'complete' or 'failed'
        if not succeeds and value == '' then value = reason(id) end
        if tries_again then
          write()
          call('LLEN', FAILED)
        end
        call('PUBLISH', task, status)
        call('LREM', RESERVED .. node, -1, id)
        call('HSET', task, 'status', status, succeeds and 'result' or 'error', value, 'updated', stamp())
        local list = succeeds and complete or failed
        list[#list + 1], leases[#leases + 1] = id, id
        ended, done[#done + 1] = ended + 1, id
        if member then removed[#removed + 1] = member end
      else
        write()
        if how == 'unseen' and attempts > 0 then call('HSET', task, 'attempts', attempts - 1) end
        put_back(id, node, is[1] == 'started' and is[4], delay and due_at('+' .. delay))
        call('HSET', task, 'returned', token)
        back = back or not delay
      end
    end
  end
  letters[#letters + 1] = letter
end
write()
leave_lines(done)
if next(nodes) then show_next() end
if ended > 0 then
  local ttl = tonumber(ARGV[2])
  if ttl > 0 then
    expire(COMPLETE, 'complete', tonumber(stamp()) - ttl, 2 * ended)
    expire(FAILED, 'failed', tonumber(stamp()) - ttl, 2 * ended)
  end
  -- Those that wait for the end learn that it may have come.
  back = back or call('EXISTS', CLOSED) == 1
end
-- A task that is no longer in hand makes room for another where the queue limits how many are.
if back or (freed and limits_flight() and call('EXISTS', PENDING) == 1) then tell() end
-- A key that another program has damaged is no reason not to note what has happened.
local scheduled = next(nodes) and redis.pcall('ZCARD', SCHEDULED)
if type(scheduled) == 'number' and scheduled > 0 and type(redis.pcall('LLEN', PENDING)) == 'number' then promote() end
return {'settled', table.concat(letters)}
