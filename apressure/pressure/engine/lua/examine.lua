-- A snapshot of all keys of a queue, or of its leftovers, whatever their types. Writes nothing. It returns no message:
-- of a string the first 4096 bytes, of other types the size.
-- KEYS: those of the prelude, then the keys that are the :bound of a queue which cannot exist beside this one
-- ARGV: none
-- Returns: {'ok', {milliseconds of the server's clock, {mark of all keys, of the producer's, of the consumer's}, {for
--          each of the first 26 keys: {type, size, value}}, {producer's lease}, {consumer's lease}, index of a
--          colliding key or 0, number of foreign entries of apart, number of foreign entries of redelivered, {members
--          of the clients that share the consumer role}, number of foreign entries of delayed, {since when and by whom
--          it is paused or '', limits as `told_limits` returns them}}} with a lease as {uid,
--          since when or -1, milliseconds until its end, 1 if its deadline is further away or 0}, or {uid} if it
--          cannot be read, or {} if there is none, and a member as {uid, since when, milliseconds until its end}, or
--          {} if it cannot be read
local function lease_of(role)
  if call('TYPE', KEYS[LEASE + role]).ok ~= 'hash' then return {} end
  local uid, since = unpack(call('HMGET', KEYS[LEASE + role], 'uid', 'since'))
  local left, overlong = lasts(role)
  if not left or unreadable(role) then return {uid or ''} end
  return {uid or '', natural(since) or -1, left, overlong and 1 or 0}
end
local shares = {}
if call('TYPE', KEYS[LEASE + CONSUMER]).ok == 'hash' and call('HGET', KEYS[LEASE + CONSUMER], 'token') == SHARED then
  for _, member in pairs(members()) do
    local left = member and math.min(member.deadline - now(), member.duration)
    shares[#shares + 1] = member and {member.uid, member.since, left} or {}
  end
end
local seen = {}
for i = 1, 26 do seen[i] = state_of(KEYS[i]) end
local marks = {mark({unpack(KEYS, 1, 26)}), mark_of(PRODUCER), mark_of(CONSUMER)}
local other = collision(28)
local fields, entries, _, later = foreign()
local said = call('TYPE', CONTROL).ok == 'hash' and {call('HGET', CONTROL, 'paused') or '', told_limits()} or {'', {}}
return {'ok', {now(), marks, seen, lease_of(PRODUCER), lease_of(CONSUMER), other and other - 27 or 0,
        #fields, #entries, shares, #later, said}}
