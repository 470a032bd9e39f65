-- Enqueue as many tasks as there is room for, in order, or schedule them (specification: Submission, Schedule Task).
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 '1' if the queue must have been created, 4... tasks (id, parameters,
--       when it is due, as `due_at` reads it, or ''; behind that, '!' and milliseconds if it expires, '$' and its
--       cost, '#' and its key; before that, '=' if it takes the place of the task with that id, which waits or is scheduled)
-- Returns: {'put', number of tasks that are in the queue} (fewer than were given: it is full) | {'missing'} |
--          {'corrupt', why} | {'closed'}

-- A task that is in line keeps its place, and one that is scheduled is due when the new one is. It keeps its key; a retry
-- in its pause no longer has its turn.
local function replace(id, parameters, eta, expires, cost)
  local task = TASK .. id
  call('HSET', task, 'parameters', parameters, 'updated', stamp())  -- first: a full server refuses it
  call('HDEL', task, 'attempts', 'failure', 'failed_attempt', 'progress', 'progress_message', 'expires', 'cost')
  if expires then call('HSET', task, 'expires', expires) end
  if cost ~= '' then call('HSET', task, 'cost', cost) end
  if call('HGET', task, 'status') == 'scheduled' then
    eta = eta or stamp()
    schedule({eta, id})
    call('HSET', task, 'eta', eta)
    wait_anew(id)
  end
end

local before, text, closed = begin(ARGV[1], ARGV[2])
if before then return {'put', before} end
local bound, created = state(ARGV[3] == '1', text)
if not bound then return created end
if closed then return {'closed'} end
local taken = occupied()
local room = bound > 0 and math.max(0, bound - taken) or math.huge
local ids, texts, pending, scheduled, expires, costs, keys, replacing = {}, {}, {}, {}, {}, {}, {}, {}
for i = 4, #ARGV, 3 do
  local replaces, when, milliseconds, cost, key = string.match(ARGV[i + 2], '^(=?)([^!$#]*)!?(%d*)%$?(%d*)#?(.*)$')
  if replaces == '' and #ids >= room then break end
  local eta = when ~= '' and due_at(when)
  local ends = milliseconds ~= '' and now() + tonumber(milliseconds) or nil
  if replaces == '=' then
    replacing[#replacing + 1] = {ARGV[i], ARGV[i + 1], eta, ends, cost}
  else
    if eta and tonumber(eta) > tonumber(stamp()) then
      scheduled[#scheduled + 1], scheduled[#scheduled + 2] = eta, ARGV[i]
    else
      pending[#pending + 1] = ARGV[i]
    end
    ids[#ids + 1] = ARGV[i]
    texts[#ids], expires[#ids], costs[#ids] = ARGV[i + 1], ends, cost ~= '' and cost or nil
    if key ~= '' then keys[#keys + 1], keys[#keys + 2] = ARGV[i], key end
  end
end
local count = #ids + #replacing
if count > 0 then
  if #pending > 0 then tell() end
  if #keys > 0 then forget_strangers(#keys + 10, taken + call('ZCARD', LEASES), is_undone) end
  note_keys(keys)
  push('LPUSH', PENDING, pending)
  schedule(scheduled)
  for i = 1, #keys, 2 do call('HSET', TASK .. keys[i], 'key', keys[i + 1]) end
  local later = 2  -- where in `scheduled` the next id is
  for i = 1, #ids do
    local task = TASK .. ids[i]
    local waits = scheduled[later] == ids[i]
    call(
      'HSET', task, 'status', waits and 'scheduled' or 'pending', 'queue', NAME, 'parameters', texts[i],
      'created', stamp(), 'updated', stamp()
    )
    if expires[i] then call('HSET', task, 'expires', expires[i]) end
    if costs[i] then call('HSET', task, 'cost', costs[i]) end
    if waits then
      call('HSET', task, 'eta', scheduled[later - 1])
      later = later + 2
    end
  end
  -- Lists for people: nothing depends on them.
  redis.pcall('ZINCRBY', QUEUES, 0, NAME)
  for i = 1, #ids, CHUNK do redis.pcall('LPUSH', TASKS, unpack(ids, i, math.min(i + CHUNK - 1, #ids))) end
  for i = 1, #replacing do replace(unpack(replacing[i], 1, 5)) end
  record(ARGV[1], count)
  promote()
  if #replacing > 0 then show_next() end
end
return {'put', tostring(count)}
