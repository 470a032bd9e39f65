-- Put as many messages as there is room for (specification: Put).
-- KEYS: those of the prelude
-- ARGV: 1 uid, 2 sequence, 3 '1' if this repeats a step, 4 '1' if the producer role was claimed, 5 lease token or '',
--       6 '1' to ignore the bound, '2' if the permit is long overdue (see {'full'}), 7... messages
-- Returns: number of messages put (fewer than given: the queue is full) | {'full'} (there is room, and a consumer that
--          works step by step is about to bring the permit for it, unless it was lost) |
--          {'room'} (there is room, but for delayed messages) | {'missing'} |
--          {'corrupt', why} | {'closed'} | {'busy', role, holder, milliseconds of its lease or -1} | {'lost'}
local claimed, token = ARGV[4], ARGV[5]
local before = recall_number(ARGV[2], ARGV[3])
if before then return before end
local bound, wrong, length, permits = check(PRODUCER)
if wrong then return refuse(wrong, PRODUCER, claimed, token, bound) end
local closed, usual = survey(bound, true, token ~= '' and PRODUCER or nil)
if not usual then length, permits = nil, nil end  -- healing may have changed them
local entered, refusal = enter(PRODUCER, claimed, token, usual)
if not entered then return refusal end

call('SET', KEYS[HOLDER + PRODUCER], ARGV[1])  -- the first write: a server that is out of memory refuses it
unclaim(PRODUCER, claimed)
if closed == 1 then return {'closed'} end
local messages, lost = #ARGV - 6, ARGV[6] == '2'
if bound > 0 and ARGV[6] ~= '1' then
  length = length or call('LLEN', LIST)
  local free = places(bound, length, permits, lost)
  if free == 0 and length < bound then return await_room(bound, length, permits) end
  messages = math.min(messages, free)
end
if messages > 0 then
  local bytes = 0
  for i = 7, 6 + messages do bytes = bytes + #ARGV[i] end
  count(PRODUCER, messages, bytes)  -- first: a user without the right to count puts nothing
  length = push('LPUSH', LIST, ARGV, 7, 6 + messages)
  record(ARGV[2], messages)
end
normalise(bound, length, permits, lost)
return messages
