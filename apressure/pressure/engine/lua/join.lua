-- Become a member of the clients that share the consumer role; the first one takes it.
-- KEYS: those of the prelude, 28 turns, 29 watch
-- ARGV: 1 uid, 2 '1' if the role was claimed, 3 member's token, 4 milliseconds of its lease, 5 sequence,
--       6 '1' if this repeats a step
-- Returns: {'ok', bound} | {'missing'} | {'corrupt', why} | {'lost'} (it comes after its repeat) |
--          {'busy', role, holder, milliseconds of its lease or -1}
local uid, claimed, token = ARGV[1], ARGV[2], ARGV[3]
if too_late(ARGV[5], ARGV[6]) then return {'lost'} end
local bound, wrong = check(CONSUMER)
if wrong then return refuse(wrong, CONSUMER, claimed, '', bound) end
survey(bound)
if call('HGET', KEYS[LEASE + CONSUMER], 'token') == SHARED then heal_members_in_time(bound) end
local lease = call('HMGET', KEYS[LEASE + CONSUMER], 'token', MEMBER .. token)
if lease[2] then return {'ok', bound} end  -- a repeat
if lease[1] ~= SHARED then
  local entered, refusal = enter(CONSUMER, claimed, '')
  if not entered then return refusal end
end

ignore_memory_limit()
unclaim(CONSUMER, claimed)
local deadline = now() + ARGV[4]
if lease[1] ~= SHARED then
  call('HSET', KEYS[LEASE + CONSUMER], 'token', SHARED, 'uid', uid, 'since', now(), 'deadline', deadline,
       'duration', ARGV[4], 'earliest', deadline, 'next', 1, 'hold', 1)  -- first, as in acquire.lua
  -- A client that watches the queue for a `get` cannot take anything now: all who wait in line try again, in turn.
  watch_state()
  call('HDEL', WATCH, 'id')
  call('HSET', WATCH, 'others', now() + WATCH_MS)
  call('PEXPIRE', WATCH, 2 * WATCH_MS)
end
call('DEL', KEYS[FREE + CONSUMER])
call('SET', KEYS[HOLDER + CONSUMER], uid)
local member = {since = now(), sequence = 0, first = 0, count = 0, ranges = {}, uid = uid}
renew_member(member, ARGV[4])
write_member(token, member)
wake(TURNS)  -- others may have waited for the client that had the role before
return {'ok', bound}
