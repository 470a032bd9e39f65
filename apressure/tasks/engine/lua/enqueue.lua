-- Enqueue as many tasks as there is room for, in order, or schedule them (specification: Submission, Schedule Task).
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 '1' if the queue must have been created, 4 the time at which they are
--       due or '', 5... tasks (id, parameters)
-- Returns: {'put', number of tasks that are in the queue} (fewer than were given: it is full) | {'missing'} |
--          {'corrupt', why} | {'closed'}
local before, text, closed = begin(ARGV[1], ARGV[2])
if before then return {'put', before} end
local bound, created = state(ARGV[3] == '1', text)
if not bound then return created end
if closed then return {'closed'} end
local eta = ARGV[4]
local later = eta ~= '' and tonumber(eta) > tonumber(stamp())
local count = (#ARGV - 4) / 2
if bound > 0 and not later then count = math.min(count, math.max(0, bound - call('LLEN', PENDING))) end
if count > 0 then
  local ids = {}
  local first = later and call('ZRANGE', SCHEDULED, 0, 0, 'WITHSCORES')[2]
  if not later then
    tell()
  elseif not first or tonumber(eta) < tonumber(first) then
    call('PUBLISH', SCHEDULERS, NAME)
  end
  for i = 1, count do ids[i] = ARGV[3 + 2 * i] end
  if not later then push('LPUSH', PENDING, ids) end  -- an error here, and nothing has been written
  local status = later and 'scheduled' or 'pending'
  for i = 1, count do
    local task = TASK .. ids[i]
    if later then call('ZADD', SCHEDULED, eta, ids[i]) end
    call(
      'HSET', task, 'status', status, 'queue', NAME, 'parameters', ARGV[4 + 2 * i],
      'created', stamp(), 'updated', stamp()
    )
    if later then call('HSET', task, 'eta', eta) end
  end
  -- Lists for people: nothing depends on them.
  redis.pcall('ZINCRBY', QUEUES, 0, NAME)
  for i = 1, count, CHUNK do redis.pcall('LPUSH', TASKS, unpack(ids, i, math.min(i + CHUNK - 1, count))) end
  record(ARGV[1], count)
end
return {'put', tostring(count)}
