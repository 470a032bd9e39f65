-- Put as many messages as there is room for, in one go (specification: Put).
-- KEYS: those of the prelude
-- ARGV: 1 uid, 2 sequence, 3 '1' if this repeats a step, 4 '1' if the producer role was claimed, 5 lease token or '',
--       6 '1' to put whatever the bound says, 7... messages
-- Returns: number of messages put (fewer than given: the queue is full) | {'missing'} | {'corrupt', why} | {'closed'} |
--          {'busy', role, holder, milliseconds of its lease or -1} | {'lost'}
local held, token = ARGV[4], ARGV[5]
local before = recall(ARGV[2], ARGV[3])
if before then return before end
local bound, wrong, length, permits = check(PRODUCER)
if wrong then return refuse(wrong, PRODUCER, held, token, bound) end
local closed, usual = survey(bound, true, token ~= '' and PRODUCER or nil)
if not usual then length, permits = nil, nil end  -- what was healed may have changed them
local entered, refusal = enter(PRODUCER, held, token, usual)
if not entered then return refusal end

call('SET', KEYS[HOLDER + PRODUCER], ARGV[1])  -- the first write: a server that is out of memory refuses here
unclaim(PRODUCER, held)
if closed == 1 then return {'closed'} end
local messages = #ARGV - 6
if bound > 0 and ARGV[6] ~= '1' then
  length = length or call('LLEN', LIST)
  messages = math.min(messages, math.max(0, bound - length))
end
if messages > 0 then
  local bytes = 0
  for i = 7, 6 + messages do bytes = bytes + #ARGV[i] end
  count(PRODUCER, messages, bytes)  -- first: where a user lacks the right to count, nothing is put
  length = push('LPUSH', LIST, ARGV, 7, 6 + messages)
  record(ARGV[2], messages)
end
normalise(bound, length, permits)
return messages
