-- A snapshot of everything that statistics show. Writes nothing.
-- KEYS: those of the prelude
-- ARGV: none
-- Returns: {'ok', {bound, length, closed, in flight, {produced messages, bytes, consumed messages, bytes},
--          {producer}, {consumer}, {members}, since when it is paused or 0, how many are delayed,
--          milliseconds after which the first of them is due or -1, {limits}} with a role as {holder, free tokens,
--          claimed tokens, lease's uid, since, deadline}, a member of the clients that share the consumer role as {uid,
--          since, deadline}, and the numbers of the specification's keys as text} | {'missing'}
local bound = call('GET', BOUND)
if not bound then return {'missing'} end
local function role_of(role)
  local lease = call('HMGET', KEYS[LEASE + role], 'uid', 'since', 'deadline')
  return {call('GET', KEYS[HOLDER + role]) or '', call('LLEN', KEYS[FREE + role]), call('LLEN', KEYS[CLAIM + role]),
          lease[1] or '', lease[2] or '', lease[3] or ''}
end
local shares = {}
for _, member in pairs(call('HMGET', KEYS[LEASE + CONSUMER], 'token')[1] == SHARED and members() or {}) do
  if member then shares[#shares + 1] = {member.uid, member.since .. '', member.deadline .. ''} end
end
return {'ok', {bound, call('LLEN', LIST), call('EXISTS', CLOSED), in_flight(),
        {call('GET', KEYS[MESSAGES + 2 * PRODUCER]) or '0', call('GET', KEYS[BYTES + 2 * PRODUCER]) or '0',
         call('GET', KEYS[MESSAGES + 2 * CONSUMER]) or '0', call('GET', KEYS[BYTES + 2 * CONSUMER]) or '0'},
        role_of(PRODUCER), role_of(CONSUMER), shares, paused_since(), delayed(), next_due(), told_limits()}}
