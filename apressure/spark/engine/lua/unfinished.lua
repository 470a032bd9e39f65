-- Which batches of a group have no commit. Writes nothing.
-- KEYS: those of the queue's prelude, 24 the group's state
-- ARGV: none
-- Returns: {'ok', number of the last committed batch, number of the last batch that may exist (incomplete, or empty),
--          milliseconds since the oldest one was sealed or -1}
local state = call('HMGET', KEYS[24], 'committed', 'sealed', 'giving', 'until')
local committed, last = tonumber(state[4] or state[1] or 0), tonumber(state[3] or (state[2] or 0) + 1)
local at = call('HGET', KEYS[24], 'at-' .. (committed + 1))
return {'ok', committed, last, at and now() - at or -1}
