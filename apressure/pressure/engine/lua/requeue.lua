-- Move dead letters back to the end of their queue, as far as there is room, and drop their reasons: the oldest, or
-- those that are chosen, in order up to the first one that is gone, or before the step takes too long.
-- KEYS: those of the prelude, of the queue that gets them; then those of the dead-letter queue, with 54 its reasons
-- ARGV: 1 uid, 2 sequence, 3 '1' if this repeats a step, 4 '1' if the producer role was claimed,
--       5 '1' if the dead-letter queue's consumer role was claimed, 6 the most messages to move,
--       7... chosen dead letters: each the message, and the time of its reason or ''
-- Returns: {'ok', number moved (0 if the first chosen one is gone), number of dead letters left} | {'full'} |
--          {'room'} (as put.lua) |
--          {'missing'} | {'corrupt', why} | {'closed'} |
--          {'busy', role, holder, milliseconds of its lease or -1} (the consumer role is the dead-letter queue's)
local uid = ARGV[1]

-- Return an answer, and give back both claims: a client that waits for one of the roles keeps none on the other.
local function finish(answer)
  switch_to(28)
  unclaim(CONSUMER, ARGV[5])
  switch_to(1)
  unclaim(PRODUCER, ARGV[4])
  return answer
end

local before = recall_rest(ARGV[2], ARGV[3])
if before then return before end
local bound, wrong = check(PRODUCER)
if wrong then
  refuse(wrong, PRODUCER, '0', '', bound)
  return finish(wrong)
end
local closed = call('EXISTS', CLOSED)
switch_to(28)
local dead_bound, dead_wrong = check(CONSUMER)
if dead_wrong and dead_wrong[1] ~= 'missing' then
  refuse(dead_wrong, CONSUMER, '0', '', dead_bound)
  return finish(dead_wrong)
end
if dead_bound then survey(dead_bound) end
local left = dead_bound and call('LLEN', LIST) or 0
call('LLEN', REDELIVERED)  -- raises an error where it is of the wrong type: before a message is taken
switch_to(1)
survey(bound)
if closed == 1 then return finish({'closed'}) end
if left == 0 then return finish({'ok', 0, 0}) end
local entered, refusal = enter(PRODUCER, ARGV[4], '')
if not entered then return finish(refusal) end
switch_to(28)
entered, refusal = enter(CONSUMER, ARGV[5], '')
if not entered then return finish(refusal) end
switch_to(1)
local most = math.min(#ARGV > 6 and (#ARGV - 6) / 2 or left, tonumber(ARGV[6]))
if bound > 0 then most = math.min(most, places(bound, call('LLEN', LIST))) end

ignore_memory_limit()  -- it needs no memory: it puts each message here that it takes there
local reasons = holds_reasons(KEYS[54]) and call('HLEN', KEYS[54]) > 0 and KEYS[54]
if ARGV[7] and not index_of(KEYS[28], reasons, 7) then return finish({'ok', 0, left}) end
if most <= 0 then
  normalise(bound)
  local length = call('LLEN', LIST)
  return finish(length < bound and delayed() > 0 and await_room(bound, length) or {'full'})
end
switch_to(28)
local messages, bytes
if #ARGV > 6 then
  messages, bytes = take_chosen(7, most, left, reasons)
else
  local chunks
  local _
  chunks, _, bytes = pop(most)
  messages = flat(chunks)
  attempts_of(messages)  -- forgets them: they start again at 1
  for i = 1, reasons and #messages or 0 do drop_reason(reasons, messages[i]) end
end
call('SET', KEYS[HOLDER + CONSUMER], uid)
count(CONSUMER, #messages, bytes)
normalise(dead_bound, nil, nil, true)
switch_to(1)
call('SET', KEYS[HOLDER + PRODUCER], uid)
push('LPUSH', LIST, messages, 1, #messages)
count(PRODUCER, #messages, bytes)
normalise(bound)
record(ARGV[2], #messages .. ':' .. left - #messages)
return finish({'ok', #messages, left - #messages})
