-- Which batches of a group have no commit. Writes nothing.
-- KEYS: those of the queue's prelude, 28 the group's state
-- ARGV: none
-- Returns: {'ok', number of the last committed batch, number of the last batch that may exist (incomplete, or empty),
--          milliseconds since the oldest one was sealed or -1} | {'corrupt', why}
local state, wrong = naturals(KEYS[28], 'committed', 'sealed', 'giving', 'until')
if wrong then return wrong end
local committed, last = state[4] or state[1] or 0, state[3] or (state[2] or 0) + 1
-- Callers ask for each of these batches. Spark has one or two of them at a time.
if last > committed + 10000 then return {'corrupt', KEYS[28] .. ' has a number of batches that cannot be'} end
local at = natural(call('HGET', KEYS[28], 'at-' .. (committed + 1)))
return {'ok', committed, last, at and now() - at or -1}
