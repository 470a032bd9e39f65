-- Reserve tasks for a listener, those that are next first (specification: Node Task Pop), and return all that is known
-- of them. It first takes back what nodes of ours have lost, and has scheduled tasks wait that are due.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 the most tasks, 4 milliseconds of the lease, 5 token of the claims,
--       6 listener, 7 limit of the attempts at a task or 0, 8 'fail' or 'retry': what happens to a task whose node dies,
--       9 '1' if the queue must have been created, 10 how many tasks the caller has in hand, if it waits for those of
--       others when the queue is closed, or ''
-- Returns: {'tasks', {{id, {field, value...}}...}, number of tasks that have failed too often, number of ids that were
--           dropped, {field, value...} of all the tasks} (without tasks: there may be more, try again) |
--          {'empty', milliseconds, 1 if the queue was created} | {'paused', milliseconds, created} |
--          {'limited', milliseconds, created, milliseconds until the limits allow another one, or -1 if one must end first}
--          (tasks wait, but the limits of the queue keep them) |
--          {'draining', milliseconds, created} (it is closed, but tasks are scheduled, or others have tasks) |
--          {'closed'} | {'missing'} | {'corrupt', why};
--          with the milliseconds after which it is worth another try in any case, or -1;
--          behind each answer, if tasks were given up: {'dead', ...}, see `with_given_up`
local token, listener, limit, policy = ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8]

-- What an earlier attempt has left, and what this one replaces.
local STALE = {
  pid = true, process_started = true, progress = true, progress_message = true, result = true, reclaimed_node = true,
  max_attempts = true, on_orphan = true, watched = true,
}
-- (Of these, `returned` stays: the step that gave the task back may be repeated.)
local REPLACED = {node = true, updated = true, token = true, returned = true}
local DONE = {reserved = true, started = true, complete = true, failed = true}

-- Milliseconds after which it is worth another try in any case: a lease ends, or a task is due; -1 if neither.
local function again()
  local lease, scheduled = due(), next_due()
  return (lease < 0 or scheduled >= 0 and scheduled < lease) and scheduled or lease
end

local before, text, closed = begin(ARGV[1], ARGV[2])
if before then
  -- The reply to this very step was lost: answer again with what is still reserved by it.
  local tasks = {}
  for id in string.gmatch(before, '%S+') do
    if some_of(id, 'token')[1] == token then tasks[#tasks + 1] = {id, call('HGETALL', TASK .. id)} end
  end
  return {'tasks', tasks, 0, 0, {}}
end
local bound, created = state(ARGV[9] == '1', text)
if not bound then return created end
created = created and 1 or 0
local controlled = call('EXISTS', CONTROL) == 1
local wrong = controlled and damaged_limits()
if wrong then return wrong end
call('LLEN', RESERVED .. listener)
call('LLEN', PENDING)
check_lines_types()
local some_scheduled = call('ZCARD', SCHEDULED) > 0
ignore_memory_limit()
if some_scheduled then promote() end
local some_left = reclaim() == LOOKED_AT
if controlled and is_paused() then return with_given_up({'paused', again(), created}) end
if some_left then return with_given_up({'tasks', {}, 0, 0, {}}) end
-- Nodes of the released blueque take what they want, and have no leases: what they have does not count, but for tasks of
-- dead ones whose processes our nodes watch. A task of ours that they have ended counts until its lease ends.
local allowed = controlled and allowance(call('ZCARD', LEASES))

-- First it reads.
local most, found, dead, looked, bytes, seen, units = tonumber(ARGV[3]), {}, {}, 0, 0, {}, 0
local budget = allowed and allowed.units or math.huge
if allowed then most = math.min(most, allowed.most) end
local reach, lined_up, gone = 2 * CHUNK, false, {}
if most > 0 and has_keys() then
  tend_lines()
  reach, lined_up = line_up(most, keys_of)
end
while #found < most and looked < reach and bytes < 1048576 and units < budget do
  local some = call('LRANGE', PENDING, -looked - math.min(most - #found, reach - looked, 100), -looked - 1)
  for i = #some, 1, -1 do
    local id = some[i]
    local fields = redis.pcall('HGETALL', TASK .. id)
    local kept, stale, n, status, attempts, expires, size, cost = {}, nil, 0, nil, nil, nil, 0, 1
    for j = 1, #fields, 2 do
      local name, value = fields[j], fields[j + 1]
      if name == 'status' then
        status = value
      elseif name == 'attempts' then
        attempts = value
      elseif name == 'expires' then
        expires = natural(value)
      elseif STALE[name] then
        stale = stale or {}
        stale[#stale + 1] = name
      elseif not REPLACED[name] then
        if name == 'parameters' then size = #value elseif name == 'cost' then cost = natural(value) or 1 end
        kept[n + 1], kept[n + 2] = name, value
        n = n + 2
      end
    end
    looked = looked + 1
    if #fields > 0 and not seen[id] and not DONE[status] then
      seen[id] = true
      attempts = (natural(attempts) or 0) + 1
      local expired = expires and expires <= now()
      if expired or limit > 0 and attempts > limit then
        dead[#dead + 1] = {id, expired and attempts - 1}
        given_up[#given_up + 1] = {id, some_of(id, 'parameters')[1], attempts - 1}
      else
        kept[n + 1], kept[n + 2] = 'attempts', tostring(attempts)
        found[#found + 1] = {id, kept, stale}
        bytes, units = bytes + size, units + cost
        if bytes >= 1048576 or units >= budget then break end
      end
    elseif not is_undone(id) then
      gone[#gone + 1] = id
    end  -- otherwise its id was in the list twice
  end
  if #some == 0 then break end
end
if #dead > 0 then
  call('LLEN', FAILED)
  call('HLEN', EXPIRED)
end

-- Then it writes.
if looked > 0 then call('LTRIM', PENDING, 0, -looked - 1) end
leave_lines(gone)
for i = 1, #dead do
  local id, expired_at = unpack(dead[i])
  finish(id, 'failed', 'error', expired_at and 'expired' or reason(id))
  if expired_at then
    call('HSET', TASK .. id, 'failure', 'expired\t', 'failed_attempt', expired_at)
    call('HINCRBY', EXPIRED, 'count', 1)
  end
end
spend(allowed, units)
local claim = {}
if #found > 0 then
  claim = {'status', 'reserved', 'node', listener, 'updated', stamp(), 'token', token}
  if limit > 0 then claim[9], claim[10] = 'max_attempts', ARGV[7] end
  if policy == 'fail' then claim[#claim + 1], claim[#claim + 2] = 'on_orphan', policy end
  local ids, leases, ends = {}, {}, now() + tonumber(ARGV[4])
  for i = 1, #found do
    ids[i] = found[i][1]
    -- A fraction keeps the order of tasks that were reserved together.
    leases[2 * i - 1], leases[2 * i] = ends + 0.0003 * i, ids[i]
  end
  push('LPUSH', RESERVED .. listener, ids)
  push('ZADD', LEASES, leases)
  for i = 1, #found do
    local task, kept, stale = TASK .. ids[i], found[i][2], found[i][3]
    if stale then call('HDEL', task, unpack(stale)) end
    call('HSET', task, 'attempts', kept[#kept], unpack(claim))
    found[i][3] = nil
  end
  record(ARGV[1], table.concat(ids, ' '))
end
show_next()
if looked > 0 or lined_up then
  tell_room(bound)
  return with_given_up({'tasks', found, #dead, looked - #found - #dead, claim})
end
local milliseconds = again()
if allowed and allowed.most == 0 and call('EXISTS', PENDING) == 1 then
  local after = allowed.after or -1
  if after >= 0 and (milliseconds < 0 or after < milliseconds) then milliseconds = after end
  return with_given_up({'limited', milliseconds, created, after})
end
if closed then
  local others = ARGV[10] ~= '' and call('ZCARD', LEASES) > tonumber(ARGV[10])
  if others or call('EXISTS', SCHEDULED, LINES) > 0 then
    return with_given_up({'draining', milliseconds, created})
  end
  return with_given_up({'closed'})
end
return with_given_up({'empty', milliseconds, created})
