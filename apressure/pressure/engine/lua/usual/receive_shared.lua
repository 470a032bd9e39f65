-- The usual case of receive_shared.lua for a member that has no deliveries, or acknowledges all of them, which follow
-- each other, with as few commands as possible: a calm queue (see `calm_bound`) with at most five messages for it, or
-- none, so that it waits. In any other case it writes nothing. (What a member without deliveries says that it
-- acknowledges or has in hand is not its own any more. Of large messages, the step may take some more.)
-- KEYS, ARGV, Returns: those of receive_shared.lua; nil for any other case
local COUNT, BYTES, NOT_FULL, HOLDER = KEYS[9], KEYS[10], KEYS[11], KEYS[4]
local CONSUMER_LEASE, APART, DELAYED, SOONER = KEYS[14], KEYS[20], KEYS[23], KEYS[25]
local token, sequence, place, behind = ARGV[2], tonumber(ARGV[5]), ARGV[8], ARGV[6] == '2'

local me = live_member(token, not behind and ARGV[4] or nil)
if not me or sequence <= tonumber(me[4]) then return nil end
local acked = {}
if me[7] ~= '' then
  if ARGV[10] ~= '0' or #ARGV ~= 13 or me[7] ~= ARGV[11] .. '-' .. ARGV[12] then return nil end
  local from, to = tonumber(ARGV[11]), tonumber(ARGV[12])
  if from > to or to - from > 99 or to >= me.next then return nil end
  for number = from, to do acked[#acked + 1] = number end
end
if behind and (sequence ~= me[4] + 1 or tonumber(me[1]) <= now()) then return nil end
local bound = calm_bound()
if not bound or acked[1] and call('HSTRLEN', APART, acked[#acked]) == 0 then return nil end
local length, permits = call('LLEN', LIST), call('LLEN', NOT_FULL)
if permits > 1 or (length == 0 and permits == 0) then return nil end
local first, sooner = math.max(me.next, ARGV[9]), math.max(1, me.earliest - now())
me[4] = sequence
local n = #me.lease
me.lease[n + 1], me.lease[n + 2] = 'next', first

local members = math.max(1, call('HLEN', CONSUMER_LEASE) - 8)
local most = math.min(tonumber(ARGV[3]), math.max(1, math.ceil(length / members)))
if ARGV[7] == '1' then most = math.min(most, 1) end
if length > 0 and (most < 1 or most > 5) then return nil end
if length == 0 and call('EXISTS', DELAYED) == 1 then return nil end  -- the answer says when the first one is due

-- The first write must be one that a server which is out of memory does not refuse.
if #acked > 0 then
  call('INCRBY', COUNT, call('HDEL', APART, unpack(acked)))
  call('INCRBY', BYTES, ARGV[13])
  me[7] = ''
else
  call('HDEL', CONSUMER_LEASE, '')
end
if length == 0 then
  me[6] = 0
  write_lease(token, me)
  if place == '' then return {'empty', sooner} end
  local left = watched_by_another(place)
  if left then return {'turn', math.min(sooner, left)} end
  call('DEL', SOONER)
  return {'watch', sooner, -1}
end

call('HSET', CONSUMER_LEASE, 'next', first)  -- where the user lacks this right, the messages stay in the queue
local messages, fields, bytes = {}, {}, 0
repeat
  local message = call('RPOP', LIST)
  messages[#messages + 1] = message
  fields[#fields + 1], fields[#fields + 2] = first + #messages - 1, '1:' .. message
  bytes = bytes + #message
until #messages == most or bytes >= 1048576
call('HSET', APART, unpack(fields))
me[5], me[6], me[7] = first, #messages, first .. '-' .. first + #messages - 1
call('SET', HOLDER, ARGV[1])
me.lease[#me.lease] = first + #messages
write_lease(token, me)
set_permit(bound, length - #messages, permits)
pass_on(place)
return {'ok', {messages}, {}, 0, first}
