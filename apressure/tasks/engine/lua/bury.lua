-- Add tasks that have failed, with why they have, as a program tells it.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 '1' if the queue must have been created,
--       4... the oldest first: id, parameters, when it failed (seconds since 1970), the error as text, attempts, the
--       error as it is kept, and the attempt that ended with it; '' for the last three where nothing is known
-- They expire as if they had failed now. While `letter_added` is `updated`, `created` says when one failed: see `standing`.
-- Returns: {'put', number of tasks that were added} | {'missing'} | {'corrupt', why}
local before, text = begin(ARGV[1], ARGV[2])
if before then return {'put', before} end
local bound, created = state(ARGV[3] == '1', text)
if not bound then return created end
check_types()
local ids = {}
for i = 4, #ARGV, 7 do
  local id, task = ARGV[i], TASK .. ARGV[i]
  if #ids == 0 then respect_memory_limit() end
  call(
    'HSET', task, 'status', 'failed', 'queue', NAME, 'parameters', ARGV[i + 1], 'created', ARGV[i + 2],
    'updated', stamp(), 'letter_added', stamp(), 'error', ARGV[i + 3]
  )
  if ARGV[i + 4] ~= '' then
    call('HSET', task, 'attempts', ARGV[i + 4], 'failure', ARGV[i + 5], 'failed_attempt', ARGV[i + 6])
  end
  call('LPUSH', FAILED, id)
  ids[#ids + 1] = id
end
-- Lists for people: nothing depends on them.
redis.pcall('ZINCRBY', QUEUES, 0, NAME)
for i = 1, #ids, CHUNK do redis.pcall('LPUSH', TASKS, unpack(ids, i, math.min(i + CHUNK - 1, #ids))) end
record(ARGV[1], #ids)
return {'put', tostring(#ids)}
