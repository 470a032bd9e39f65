-- Take a role under a lease, for a block of operations.
-- KEYS: those of the prelude
-- ARGV: 1 uid, 2 role, 3 '1' if the role was claimed, 4 the new lease token, 5 milliseconds of the lease,
--       6 sequence, 7 '1' if this repeats a step
-- Returns: {'ok', bound} | {'missing'} | {'corrupt', why} | {'closed'} (a closed queue needs no producer) |
--          {'lost'} (it arrived after its repeat) | {'busy', role, holder, milliseconds of its lease or -1}
local role = ARGV[2] == 'producer' and PRODUCER or CONSUMER
if too_late(ARGV[6], ARGV[7]) then return {'lost'} end
local bound, wrong = check(role)
if wrong then return refuse(wrong, role, ARGV[3], '', bound) end
if call('HGET', KEYS[LEASE + role], 'token') == ARGV[4] then return {'ok', bound} end  -- a repeat
survey(bound)
local entered, refusal = enter(role, ARGV[3], '')
if not entered then return refusal end

ignore_memory_limit()
unclaim(role, ARGV[3])
if role == PRODUCER and call('EXISTS', CLOSED) == 1 then return {'closed'} end
local time = now()
-- First, with a deadline: if this step fails below (the user lacks a right), it expires, and the role is free again.
call('HSET', KEYS[LEASE + role], 'token', ARGV[4], 'uid', ARGV[1], 'since', time,
     'deadline', time + ARGV[5], 'duration', ARGV[5], 'next', 1, 'hold', 1)
call('DEL', KEYS[FREE + role])
call('SET', KEYS[HOLDER + role], ARGV[1])
return {'ok', bound}
