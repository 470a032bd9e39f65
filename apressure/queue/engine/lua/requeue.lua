-- Move dead letters back to the end of their queue, the oldest first, as far as there is room.
-- KEYS: those of the prelude, of the queue that gets them; then those of the dead-letter queue
-- ARGV: 1 uid, 2 sequence, 3 '1' if this repeats a step, 4 '1' if the producer role was claimed,
--       5 '1' if the dead-letter queue's consumer role was claimed, 6 the most messages to move
-- Returns: {'ok', number moved, number of dead letters left} | {'full'} | {'missing'} | {'corrupt', why} | {'closed'} |
--          {'busy', role, holder, milliseconds of its lease or -1} (the consumer role is the dead-letter queue's)
local uid = ARGV[1]

-- Return an answer, and give back both claims: a client that waits for one of the roles keeps none on the other.
local function finish(answer)
  switch_to(24)
  unclaim(CONSUMER, ARGV[5])
  switch_to(1)
  unclaim(PRODUCER, ARGV[4])
  return answer
end

local before = recall(ARGV[2], ARGV[3])
if before then return {'ok', before, call('LLEN', KEYS[24])} end
local bound, wrong = check(PRODUCER)
if wrong then
  refuse(wrong, PRODUCER, '0', '', bound)
  return finish(wrong)
end
local closed = call('EXISTS', CLOSED)
switch_to(24)
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
switch_to(24)
entered, refusal = enter(CONSUMER, ARGV[5], '')
if not entered then return finish(refusal) end
switch_to(1)
local most = math.min(tonumber(ARGV[6]), left)
if bound > 0 then most = math.min(most, places(bound, call('LLEN', LIST))) end

ignore_memory_limit()  -- it needs no memory: it puts each message here that it takes there
if most <= 0 then
  normalise(bound)
  return finish({'full'})
end
switch_to(24)
call('SET', KEYS[HOLDER + CONSUMER], uid)
local chunks, _, bytes = pop(most)
local messages = flat(chunks)
attempts_of(messages)  -- forgets them: they start again at 1
count(CONSUMER, #messages, bytes)
normalise(dead_bound, nil, nil, true)
switch_to(1)
call('SET', KEYS[HOLDER + PRODUCER], uid)
push('LPUSH', LIST, messages, 1, #messages)
count(PRODUCER, #messages, bytes)
normalise(bound)
record(ARGV[2], #messages)
return finish({'ok', #messages, left - #messages})
