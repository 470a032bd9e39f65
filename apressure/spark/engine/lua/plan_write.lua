-- Decide which parts a write to several queues consists of: those of the first call. Its plan is kept beside the queue for
-- rows without a queue of their own. Safe to repeat.
-- KEYS: those of the queue's prelude, 28 the queue's sinks
-- ARGV: 1 the write (a query's id), 2 number of its batch, 3 the plan
-- Returns: {'ok', the plan of the first call} | {'done'} (the write is in the queues already) | {'alone'} (the first call
--          was without a plan: all of its parts are for this queue) | {'other', number of the batch that is not complete} |
--          {'missing'} | {'corrupt', why}
local SINKS = KEYS[28]
local field, batch = ARGV[1] .. ':plan', tonumber(ARGV[2])
local number, plan = string.match(call('HGET', SINKS, field) or '', '^(%d+) (.*)$')
number = tonumber(number)
if number and (number > batch or number == batch and plan == '') then return {'done'} end
if number and plan ~= '' then
  if number == batch then return {'ok', plan} end
  return {'other', number}
end
if not number then
  local complete, pending = unpack(call('HMGET', SINKS, ARGV[1], ARGV[1] .. ':batch'))
  if pending == ARGV[2] then return {'alone'} end
  if complete and tonumber(complete) >= batch then return {'done'} end
end
local bound, wrong = check(PRODUCER)
if wrong then return wrong end
call('HSET', SINKS, field, ARGV[2] .. ' ' .. ARGV[3])
return {'ok', ARGV[3]}
