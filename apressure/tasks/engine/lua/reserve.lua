-- Reserve tasks for a listener, those that are next first (specification: Node Task Pop), and return all that is known
-- of them. It first takes back what nodes of ours have lost.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 the most tasks, 4 milliseconds of the lease, 5 token of the claims,
--       6 listener, 7 limit of the attempts at a task or 0, 8 'fail' or 'retry': what happens to a task whose node dies,
--       9 '1' if the queue must have been created, 10 how many tasks the caller has in hand, if it waits for those of
--       others when the queue is closed, or ''
-- Returns: {'tasks', {{id, {field, value...}}...}, number of tasks that have failed too often, number of ids that were
--           dropped} (without tasks: there may be more, try again) |
--          {'empty', milliseconds, 1 if the queue was created} | {'paused', milliseconds, created} |
--          {'draining', milliseconds, created} (it is closed, but tasks are scheduled, or others have tasks) |
--          {'closed'} | {'missing'} | {'corrupt', why};
--          with the milliseconds after which it is worth another try in any case, or -1
local token, listener, limit, policy = ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8]

-- What an earlier attempt has left.
local STALE = {
  'pid', 'process_started', 'progress', 'progress_message', 'result', 'reclaimed_node', 'max_attempts', 'on_orphan',
  'returned', 'watched',
}

local function flat_of(fields)
  local flat = {}
  for name, value in pairs(fields) do
    flat[#flat + 1], flat[#flat + 2] = name, value
  end
  return flat
end

local before, text, closed, paused = begin(ARGV[1], ARGV[2])
if before then
  -- The reply to this very step was lost: answer again with what is still reserved by it.
  local tasks = {}
  for id in string.gmatch(before, '%S+') do
    local fields = fields_of(id)
    if fields and fields['token'] == token then tasks[#tasks + 1] = {id, flat_of(fields)} end
  end
  return {'tasks', tasks, 0, 0}
end
local bound, created = state(ARGV[9] == '1', text)
if not bound then return created end
created = created and 1 or 0
call('LLEN', RESERVED .. listener)
call('LLEN', PENDING)
ignore_memory_limit()
reclaim()
if paused then return {'paused', due(), created} end

-- First it reads.
local most, found, dead, looked, bytes, seen = tonumber(ARGV[3]), {}, {}, 0, 0, {}
while #found < most and looked < 2 * CHUNK and bytes < 1048576 do
  local some = call('LRANGE', PENDING, -looked - math.min(most - #found, 100), -looked - 1)
  for i = #some, 1, -1 do
    local fields = fields_of(some[i])
    local status = fields and fields['status'] or 'pending'
    looked = looked + 1
    if fields and not seen[some[i]] and status ~= 'reserved' and status ~= 'started' and status ~= 'complete' and status ~= 'failed' then
      seen[some[i]] = true
      local attempts = (natural(fields['attempts']) or 0) + 1
      if limit > 0 and attempts > limit then
        dead[#dead + 1] = some[i]
      else
        fields['attempts'] = attempts
        found[#found + 1] = {some[i], fields}
        bytes = bytes + #(fields['parameters'] or '')
        if bytes >= 1048576 then break end
      end
    end  -- otherwise it was deleted, or its id was in the list twice
  end
  if #some == 0 then break end
end
if #dead > 0 then call('LLEN', FAILED) end

-- Then it writes.
if looked > 0 then call('LTRIM', PENDING, 0, -looked - 1) end
for i = 1, #dead do finish(dead[i], 'failed', 'error', reason(dead[i])) end
if #found > 0 then
  local ids, leases = {}, {}
  for i = 1, #found do
    ids[i] = found[i][1]
    -- A fraction keeps the order of tasks that were reserved together.
    leases[2 * i - 1], leases[2 * i] = now() + tonumber(ARGV[4]) + 0.0003 * i, ids[i]
  end
  push('LPUSH', RESERVED .. listener, ids)
  push('ZADD', LEASES, leases)
  for i = 1, #found do
    local id, fields = found[i][1], found[i][2]
    local stale = {}
    for j = 1, #STALE do
      if fields[STALE[j]] then
        stale[#stale + 1] = STALE[j]
        fields[STALE[j]] = nil
      end
    end
    if #stale > 0 then call('HDEL', TASK .. id, unpack(stale)) end
    call(
      'HSET', TASK .. id, 'status', 'reserved', 'node', listener, 'updated', stamp(), 'token', token,
      'attempts', fields['attempts']
    )
    fields['status'], fields['node'], fields['updated'], fields['token'] = 'reserved', listener, stamp(), token
    fields['attempts'] = tostring(fields['attempts'])
    if limit > 0 then
      fields['max_attempts'] = ARGV[7]
      call('HSET', TASK .. id, 'max_attempts', limit)
    end
    if policy == 'fail' then
      fields['on_orphan'] = policy
      call('HSET', TASK .. id, 'on_orphan', policy)
    end
    found[i][2] = flat_of(fields)
  end
  record(ARGV[1], table.concat(ids, ' '))
end
if looked > 0 then
  tell_room(bound)
  return {'tasks', found, #dead, looked - #found - #dead}
end
local again = due()
if closed then
  local others = ARGV[10] ~= '' and call('ZCARD', LEASES) > tonumber(ARGV[10])
  if others or call('ZCARD', SCHEDULED) > 0 then return {'draining', again, created} end
  return {'closed'}
end
return {'empty', again, created}
