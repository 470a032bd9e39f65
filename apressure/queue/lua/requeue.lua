-- Move dead letters back to the end of the queue that they came from, the oldest first, as far as there is room.
-- KEYS: those of the prelude, of the queue that gets them; then those of the dead-letter queue
-- ARGV: 1 uid, 2 sequence, 3 '1' if this repeats a step, 4 '1' if the producer role was claimed,
--       5 '1' if the dead-letter queue's consumer role was claimed, 6 the most messages to move
-- Returns: {'ok', number moved, number of dead letters left} | {'full'} | {'missing'} | {'corrupt', why} | {'closed'} |
--          {'busy', role, holder, milliseconds of its lease or -1} (the consumer role is the dead-letter queue's)
local uid = ARGV[1]

-- A client that waits for one of the roles keeps no claim on the other.
local function finish(answer)
  turn_to(23)
  unclaim(CONSUMER, ARGV[5])
  turn_to(1)
  unclaim(PRODUCER, ARGV[4])
  return answer
end

local before = recall(ARGV[2], ARGV[3])
if before then return {'ok', before, call('LLEN', KEYS[23])} end
local bound, wrong = check(PRODUCER)
if wrong then
  refuse(wrong, PRODUCER, '0', '', bound)
  return finish(wrong)
end
local closed = call('EXISTS', CLOSED)
turn_to(23)
local dead_bound, dead_wrong = check(CONSUMER)
if dead_wrong and dead_wrong[1] ~= 'missing' then
  refuse(dead_wrong, CONSUMER, '0', '', dead_bound)
  return finish(dead_wrong)
end
if dead_bound then survey(dead_bound) end
local left = dead_bound and call('LLEN', LIST) or 0
turn_to(1)
survey(bound)
if closed == 1 then return finish({'closed'}) end
if left == 0 then return finish({'ok', 0, 0}) end
local entered, refusal = enter(PRODUCER, ARGV[4], '')
if not entered then return finish(refusal) end
turn_to(23)
entered, refusal = enter(CONSUMER, ARGV[5], '')
if not entered then return finish(refusal) end
turn_to(1)
local most = math.min(tonumber(ARGV[6]), left)
if bound > 0 then most = math.min(most, bound - call('LLEN', LIST)) end

ignore_memory_limit()  -- what is put here is taken there
if most <= 0 then
  normalise(bound)
  return finish({'full'})
end
turn_to(23)
call('SET', KEYS[HOLDER + CONSUMER], uid)
local portions, _, bytes = pop(most)
local messages = flat(portions)
attempts_of(messages)  -- forgets them: they start anew
count(CONSUMER, #messages, bytes)
normalise(dead_bound)
turn_to(1)
call('SET', KEYS[HOLDER + PRODUCER], uid)
push('LPUSH', LIST, messages, 1, #messages)
count(PRODUCER, #messages, bytes)
normalise(bound)
record(ARGV[2], #messages)
return finish({'ok', #messages, left - #messages})
