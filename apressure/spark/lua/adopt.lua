-- Become the query that reads for a group: whoever did so before is refused from now on.
-- KEYS: those of the queue's prelude, 23 the group's state, 24 the queue's groups
-- ARGV: 1 the group
-- Returns: {'ok', epoch, number of the last batch that is done with, number of the last sealed batch}
local GROUP = KEYS[23]
-- It goes by the clock, so that a server that has lost the state gives no number for the second time.
local epoch = math.max(now(), (tonumber(call('HGET', GROUP, 'epoch')) or 0) + 1)
local state = call('HMGET', GROUP, 'committed', 'sealed')
call('HSET', KEYS[24], ARGV[1], '')
call('HSET', GROUP, 'epoch', epoch)
return {'ok', epoch, tonumber(state[1] or 0), tonumber(state[2] or 0)}
