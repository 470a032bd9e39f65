-- Renew the lease of a member while its owner's event loop is blocked. The lease never gets shorter.
-- KEYS: those of the prelude, 28 turns, 29 watch
-- ARGV: 1 member's token, 2 milliseconds of the lease
-- Returns: 1 | 2 if the queue is paused or held | {'missing'} | {'corrupt', why} | {'lost'}
local lease = call('HMGET', KEYS[LEASE + CONSUMER], 'token', MEMBER .. ARGV[1])
local me = member_of(lease[2])
if lease[1] ~= SHARED or not me or unreadable(CONSUMER) then return no_member() end
local bound, wrong = check(CONSUMER)
if not bound then return wrong end  -- a broken statistic does not matter here
in_flight()  -- this, and the next, raise an error where the keys are of a wrong type
call('LLEN', REDELIVERED)
ignore_memory_limit()
-- `Delivery.extend` may have been here a moment ago, by another connection.
renew_member(me, math.max(tonumber(ARGV[2]), math.min(me.deadline - now(), me.duration)))
write_member(ARGV[1], me)
-- If all other members are blocked, too, no other step heals a dead one.
heal_members_in_time(bound)
return is_halted() + 1
