-- Enqueue as many tasks as there is room for, in order, or schedule them (specification: Submission, Schedule Task).
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 '1' if the queue must have been created, 4 the time at which they are
--       due or '', 5... tasks (id, parameters)
-- Returns: {'put', number of tasks that are in the queue} (fewer than were given: it is full) | {'missing'} |
--          {'corrupt', why} | {'closed'}
local before = recall(ARGV[1], ARGV[2])
if before then return {'put', before} end
local bound, created = state(ARGV[3] == '1')
if not bound then return created end
if call('EXISTS', CLOSED) == 1 then return {'closed'} end
check_types()
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
  local status = later and 'scheduled' or 'pending'
  for i = 1, count do
    local id, task = ARGV[3 + 2 * i], TASK .. ARGV[3 + 2 * i]
    ids[i] = id
    call(
      'HSET', task, 'status', status, 'queue', NAME, 'parameters', ARGV[4 + 2 * i],
      'created', stamp(), 'updated', stamp()
    )
    if later then
      call('HSET', task, 'eta', eta)
      call('ZADD', SCHEDULED, eta, id)
    end
  end
  call('ZINCRBY', QUEUES, 0, NAME)
  if not later then push('LPUSH', PENDING, ids) end
  push('LPUSH', TASKS, ids)
  record(ARGV[1], count)
end
return {'put', tostring(count)}
