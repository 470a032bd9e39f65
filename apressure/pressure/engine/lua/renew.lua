-- Renew the lease of a role while its owner's event loop is blocked. The lease never gets shorter.
-- KEYS: those of the prelude
-- ARGV: 1 role, 2 lease token, 3 milliseconds of the lease
-- Returns: 1 | 2 if it is the consumer's, and the queue is paused or held | {'missing'} | {'lost'}
local role = ARGV[1] == 'producer' and PRODUCER or CONSUMER
if call('HGET', KEYS[LEASE + role], 'token') ~= ARGV[2] or unreadable(role) then return {'lost'} end
if call('EXISTS', BOUND) == 0 then return {'missing'} end
-- `Delivery.extend` may have been here a moment ago, by another connection.
local milliseconds = math.max(tonumber(ARGV[3]), lasts(role) or 0)
ignore_memory_limit()
call('HSET', KEYS[LEASE + role], 'deadline', now() + milliseconds, 'duration', milliseconds)
return role == CONSUMER and is_halted() + 1 or 1
