-- Become the query that reads for a group: the steps of all earlier epochs are refused from now on. A checkpoint that is
-- older than the last commit is refused itself, and the query that reads goes on.
-- KEYS: those of the queue's prelude, 28 the group's state, 29 the queue's groups
-- ARGV: 1 the group, 2 number of the last batch in the query's checkpoint, or '' for a new checkpoint
-- Returns: {'ok', epoch, number of the last committed batch, number of the last sealed batch} |
--          {'behind', number of the last committed batch} | {'corrupt', why}
local GROUP = KEYS[28]
-- The epoch follows the clock, so that a server that has lost the state never gives the same one twice.
local epoch = math.max(now(), (natural(call('HGET', GROUP, 'epoch')) or 0) + 1)
local state, wrong = naturals(GROUP, 'committed', 'sealed')
if wrong then return wrong end
if ARGV[2] ~= '' and (state[1] or 0) > tonumber(ARGV[2]) then return {'behind', state[1]} end
call('HSET', KEYS[29], ARGV[1], '')
call('HSET', GROUP, 'epoch', epoch)
return {'ok', epoch, state[1] or 0, state[2] or 0}
