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
}

local function flat_of(fields)
  local flat = {}
  for name, value in pairs(fields) do
    flat[#flat + 1], flat[#flat + 2] = name, value
  end
  return flat
end

local before = recall(ARGV[1], ARGV[2])
if before then
  -- The reply to this very step was lost: answer again with what is still reserved by it.
  local tasks = {}
  for id in string.gmatch(before, '%S+') do
    local fields = fields_of(id)
    if fields and fields['token'] == token then tasks[#tasks + 1] = {id, flat_of(fields)} end
  end
  return {'tasks', tasks, 0, 0}
end
local bound, created = state(ARGV[9] == '1')
if not bound then return created end
created = created and 1 or 0
check_types()
call('LLEN', RESERVED .. listener)
ignore_memory_limit()
reclaim()
if call('EXISTS', PAUSED) == 1 then return {'paused', due(), created} end

local most, tasks, ids, leases, dead, dropped = tonumber(ARGV[3]), {}, {}, {}, 0, 0
local bytes, looked = 0, 0
while #ids < most and looked < 2 * CHUNK and bytes < 1048576 do
  local some = call('LRANGE', PENDING, -math.min(most - #ids, 100), -1)
  if #some == 0 then break end
  local taken = 0
  for i = #some, 1, -1 do
    local id = some[i]
    local task = TASK .. id
    local fields = fields_of(id)
    local status = fields and fields['status'] or 'pending'
    taken = taken + 1
    if not fields or status == 'reserved' or status == 'started' or status == 'complete' or status == 'failed' then
      -- It was deleted, or its id was in the list twice.
      dropped = dropped + 1
    else
      local attempts = (natural(fields['attempts']) or 0) + 1
      if limit > 0 and attempts > limit then
        finish(id, 'failed', 'error', fields['error'] or LOST)
        dead = dead + 1
      else
        local stale = {}
        for i = 1, #STALE do
          if fields[STALE[i]] then
            stale[#stale + 1] = STALE[i]
            fields[STALE[i]] = nil
          end
        end
        if #stale > 0 then call('HDEL', task, unpack(stale)) end
        fields['status'], fields['node'], fields['updated'], fields['token'] = 'reserved', listener, stamp(), token
        fields['attempts'] = tostring(attempts)
        call(
          'HSET', task, 'status', 'reserved', 'node', listener, 'updated', stamp(), 'token', token, 'attempts', attempts
        )
        if limit > 0 then
          fields['max_attempts'] = ARGV[7]
          call('HSET', task, 'max_attempts', limit)
        end
        if policy == 'fail' then
          fields['on_orphan'] = policy
          call('HSET', task, 'on_orphan', policy)
        end
        ids[#ids + 1] = id
        tasks[#tasks + 1] = {id, flat_of(fields)}
        -- A fraction keeps the order of tasks that were reserved together.
        leases[2 * #ids - 1], leases[2 * #ids] = now() + tonumber(ARGV[4]) + 0.0003 * #ids, id
        bytes = bytes + #(fields['parameters'] or '')
        if bytes >= 1048576 then break end
      end
    end
  end
  looked = looked + taken
  call('LTRIM', PENDING, 0, -taken - 1)
  if taken < #some then break end
end
if #ids > 0 then
  push('LPUSH', RESERVED .. listener, ids)
  push('ZADD', LEASES, leases)
  record(ARGV[1], table.concat(ids, ' '))
end
if looked > 0 then
  tell_room(bound)
  return {'tasks', tasks, dead, dropped}
end
local again = due()
if call('EXISTS', CLOSED) == 1 then
  local others = ARGV[10] ~= '' and call('ZCARD', LEASES) > tonumber(ARGV[10])
  if others or call('ZCARD', SCHEDULED) > 0 then return {'draining', again, created} end
  return {'closed'}
end
return {'empty', again, created}
