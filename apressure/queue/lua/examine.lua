-- The raw facts about a queue, or about what there is of it, whatever types its keys have. Writes nothing, and reads no
-- message: of a string the first 4096 bytes, of everything else the size.
-- KEYS: those of the prelude, then the keys that are the :bound of a queue which cannot exist beside this one
-- ARGV: none
-- Returns: {'ok', {milliseconds of the server's clock, {mark of all keys, of the producer's, of the consumer's},
--          {for each of the first 21 keys: {type, size, value}}, {producer's lease}, {consumer's lease},
--          index of a colliding key or 0}} with a lease as {uid, since, deadline}
local function lease_of(role)
  if call('TYPE', KEYS[LEASE + role]).ok ~= 'hash' then return {'', '', ''} end
  local lease = call('HMGET', KEYS[LEASE + role], 'uid', 'since', 'deadline')
  return {lease[1] or '', lease[2] or '', lease[3] or ''}
end
local seen = {}
for i = 1, 21 do seen[i] = look(KEYS[i]) end
local marks = {mark({unpack(KEYS, 1, 21)}), mark_of(PRODUCER), mark_of(CONSUMER)}
local other = collision(23)
return {'ok', {now(), marks, seen, lease_of(PRODUCER), lease_of(CONSUMER), other and other - 22 or 0}}
