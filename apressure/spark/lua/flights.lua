-- What groups have taken from the queue and not done with. Writes nothing.
-- KEYS: those of the queue's prelude, then for each group its state
-- ARGV: none
-- Returns: {'ok', {for each group: {last batch done with, last batch that there may be (half filled, or empty),
--          milliseconds since the oldest one was sealed or -1}}}
local found = {}
for i = 23, #KEYS do
  local state = call('HMGET', KEYS[i], 'committed', 'sealed', 'giving', 'until')
  local committed, last = tonumber(state[4] or state[1] or 0), tonumber(state[3] or (state[2] or 0) + 1)
  local at = call('HGET', KEYS[i], 'at-' .. (committed + 1))
  found[#found + 1] = {committed, last, at and now() - at or -1}
end
return {'ok', found}
