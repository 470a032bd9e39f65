-- Read messages at positions of an earlier moment, wherever they are by now. Writes nothing.
-- KEYS: those of the queue's prelude
-- ARGV: 1 how many messages had left the right end at that moment, 2 and 3 the positions of the first message and behind
--       the last one, counted from the oldest
-- Returns: {'ok', how many messages have left since, those of the messages that are there, newest first} | {'corrupt', why}
local consumed, wrong = integer(KEYS[MESSAGES + 2 * CONSUMER], '0')
if wrong then return wrong end
local moved = consumed + in_flight() - ARGV[1]
local right, left = math.max(0, ARGV[2] - moved), math.max(0, ARGV[3] - moved)
return {'ok', moved, left > right and call('LRANGE', LIST, -left, -right - 1) or {}}
