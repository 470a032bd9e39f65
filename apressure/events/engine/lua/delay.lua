-- Put as many events for later as there is room for, in order.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 '1' if the queue must have been created, 4... events (id, contents,
--       when it is due, as `due_time` reads it)
-- Returns: those of push.lua
local before = recall(ARGV[1], ARGV[2])
if before then return {'pushed', before} end
local bound, refusal = open_to_puts(ARGV[3] == '1')
if not bound then return refusal end
local room = bound > 0 and math.max(0, bound - occupied()) or math.huge
local letters, places, ids, pairs_ = accepted(4, #ARGV, 3, room)
if #ids > 0 then
  local scores = {}
  for i = 1, #ids do
    -- A fraction keeps the order of events that were put together.
    scores[2 * i - 1], scores[2 * i] = due_time(ARGV[places[i] + 2]) + 0.0003 * i, ids[i]
  end
  respect_memory_limit()
  forget_attempts(ids)
  delay(scores, pairs_)
  promote()
end
return answer_put(letters, bound)
