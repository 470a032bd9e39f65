-- The second half of Delete: when both roles are free, it deletes all keys, also ours.
-- KEYS: those of the prelude, 28 the reasons of dead letters, 29 the schedules, 30 the dedup ids, then the
--       counters that the released Go client keeps
-- ARGV: 1 '1' if the producer role was claimed, 2 '1' if the consumer role was claimed
-- Returns: 1 | {'recreated'} (a new queue of the name was created meanwhile; the old one is gone) |
--          {'busy', role, holder, milliseconds of its lease or -1}
if call('EXISTS', BOUND) == 1 then
  unclaim(PRODUCER, ARGV[1])
  unclaim(CONSUMER, ARGV[2])
  return {'recreated'}
end
-- No key is left: this step was carried out before, and its reply was lost.
if call('EXISTS', unpack(KEYS, 1, 26)) == 0 then
  redis.pcall('SET', OP, ':', 'PX', RECORD_MS)  -- a write, for a WAIT that follows (see recall)
  return 1
end
survey(nil)
unclaim(PRODUCER, ARGV[1])
unclaim(CONSUMER, ARGV[2])
local entered, refusal = enter(PRODUCER, '0', '')
if entered then entered, refusal = enter(CONSUMER, '0', '') end
if not entered then return refusal end
-- (`jobs:stats_produced_bytes` is a legal name of another queue: a list there has its messages.)
for i = 31, #KEYS do
  if type(redis.pcall('GET', KEYS[i])) == 'string' then call('DEL', KEYS[i]) end
end
call('DEL', KEYS[28], KEYS[29], KEYS[30], unpack(KEYS, 1, 26))
return 1
