-- Enqueue as many tasks as there is room for, in order, or schedule them (specification: Submission, Schedule Task).
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 '1' if the queue must have been created, 4... tasks (id, parameters,
--       when it is due, as `due_at` reads it, or ''; behind that, '!' and milliseconds if it expires, '#' and its key)
-- Returns: {'put', number of tasks that are in the queue} (fewer than were given: it is full) | {'missing'} |
--          {'corrupt', why} | {'closed'}
local before, text, closed = begin(ARGV[1], ARGV[2])
if before then return {'put', before} end
local bound, created = state(ARGV[3] == '1', text)
if not bound then return created end
if closed then return {'closed'} end
local taken = occupied()
local room = bound > 0 and math.max(0, bound - taken) or math.huge
local ids, pending, scheduled, expires, keys = {}, {}, {}, {}, {}
for i = 4, #ARGV, 3 do
  if #ids >= room then break end
  local when, milliseconds, key = string.match(ARGV[i + 2], '^([^!#]*)!?(%d*)#?(.*)$')
  local eta = when ~= '' and due_at(when)
  if eta and tonumber(eta) > tonumber(stamp()) then
    scheduled[#scheduled + 1], scheduled[#scheduled + 2] = eta, ARGV[i]
  else
    pending[#pending + 1] = ARGV[i]
  end
  ids[#ids + 1] = ARGV[i]
  if key ~= '' then keys[#keys + 1], keys[#keys + 2] = ARGV[i], key end
  expires[#ids] = milliseconds ~= '' and now() + tonumber(milliseconds) or nil
end
if #ids > 0 then
  if #pending > 0 then tell() end
  if #keys > 0 then forget_strangers(#keys + 10, taken + call('ZCARD', LEASES), is_undone) end
  note_keys(keys)
  push('LPUSH', PENDING, pending)
  schedule(scheduled)
  for i = 1, #keys, 2 do call('HSET', TASK .. keys[i], 'key', keys[i + 1]) end
  local later = 2  -- where in `scheduled` the next id is
  for i = 1, #ids do
    local task, at = TASK .. ids[i], 1 + 3 * i
    local waits = scheduled[later] == ids[i]
    call(
      'HSET', task, 'status', waits and 'scheduled' or 'pending', 'queue', NAME, 'parameters', ARGV[at + 1],
      'created', stamp(), 'updated', stamp()
    )
    if expires[i] then call('HSET', task, 'expires', expires[i]) end
    if waits then
      call('HSET', task, 'eta', scheduled[later - 1])
      later = later + 2
    end
  end
  -- Lists for people: nothing depends on them.
  redis.pcall('ZINCRBY', QUEUES, 0, NAME)
  for i = 1, #ids, CHUNK do redis.pcall('LPUSH', TASKS, unpack(ids, i, math.min(i + CHUNK - 1, #ids))) end
  record(ARGV[1], #ids)
  promote()
end
return {'put', tostring(#ids)}
