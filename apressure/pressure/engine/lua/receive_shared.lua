-- Deliver messages to a member of the clients that share the consumer role, acknowledging others on the way.
-- KEYS: those of the prelude, 28 turns, 29 watch; with a limit also those of the dead-letter queue (56 its reasons),
--       and from 57 on the keys of which none may exist when it is made (each the :bound of a queue it collides with)
-- ARGV: 1 uid, 2 member's token, 3 the most messages to receive, 4 milliseconds of the lease, 5 sequence,
--       6 '1' if this repeats a step, or '2' if it stands behind a wait (see receive.lua),
--       7 limit of deliveries of a message or 0, 8 place of this client in the line, or '' if it does not wait,
--       9 a number behind those of all its deliveries so far, 10 number of arguments that say what it has in hand,
--       11... ranges in hand (first, last), then acknowledged ranges (first, last, bytes)
-- Returns: {'ok', {{messages}...}, {attempts} or {} (each the first), dead letters as `take` returns them, number of
--          the first}
--          (without messages: there may be more, try again) | {'empty', milliseconds} (to one that does not wait) |
--          {'watch', milliseconds, due} (watch the queue) | {'turn', milliseconds} (wait in line) |
--          {'limited', milliseconds, due} (as in get.lua) | {'paused', milliseconds} |
--          {'draining', milliseconds, due} (closed and empty, but other members have messages, which may come back, or
--          some are delayed) |
--          {'closed'} | {'missing'} | {'corrupt', why} | {'lost'} | {'dead', why they cannot be moved};
--          with the milliseconds after which another member may turn out to be dead, and those after which a delayed
--          message is due, or -1
local uid, token, sequence, limit, place = ARGV[1], ARGV[2], tonumber(ARGV[5]), tonumber(ARGV[7]), ARGV[8]
local bound, wrong = check(CONSUMER)
local lease = call('HMGET', KEYS[LEASE + CONSUMER], 'token', 'next', MEMBER .. token)
local next_number, me = natural(lease[2]), member_of(lease[3])
if wrong then return refuse(wrong, CONSUMER, '0', lease[1] == SHARED and me and SHARED or '', bound) end
in_flight()  -- raises an error where those keys are of a wrong type: before a message is taken
call('LLEN', REDELIVERED)
local late = me and (sequence < me.sequence or sequence == me.sequence and ARGV[6] ~= '1')  -- it comes after its repeat
local behind = ARGV[6] == '2'
if lease[1] ~= SHARED or not (next_number and me) or late then return {'lost'} end
if behind and (sequence ~= me.sequence + 1 or me.deadline <= now()) then return {'lost'} end

ignore_memory_limit()
local closed, usual = survey(bound, false, CONSUMER)
wrong = not usual and damaged_limits()
if wrong then return wrong end
if not behind then renew_member(me, ARGV[4]) end
write_member(token, me)
if sequence == me.sequence and me.count > 0 then
  -- The reply to this very step was lost: answer again with what it had received.
  local messages, attempts = {}, {}
  for i = 1, me.count do
    messages[i], attempts[i] = look_apart(me.first + i - 1)
    if not messages[i] then break end  -- another program deleted it; what is behind it is returned by the next step
  end
  return {'ok', {messages}, attempts, 0, me.first}
end
heal_members_in_time(bound)
local function due()
  local earliest = natural(call('HGET', KEYS[LEASE + CONSUMER], 'earliest')) or 0
  return math.max(1, earliest - now())
end

local hand_to = 10 + tonumber(ARGV[10])
local acks = owned_acks(me, ARGV, hand_to + 1, #ARGV)
local acknowledged = acknowledge(acks, 1, #acks)
-- What it neither acknowledges nor has in hand it does not know of: the reply to a receive was lost for good, or a
-- server that took over has not heard that it was settled.
local _, rest = split(me.ranges, ranges_in(acks, 1, #acks, 3))
local ranges, unknown = split(rest, ranges_in(ARGV, 11, hand_to, 2))
put_back(numbers_in(unknown), tonumber(ARGV[9]))
me.sequence, me.count, me.ranges = sequence, 0, ranges

if not usual and is_paused() then
  write_member(token, me)
  normalise(bound)
  if closed == 1 and acknowledged > 0 then wake(TURNS, member_count() - 1) end
  if place ~= '' then pass_on(place) end  -- it waits for the end of the pause now
  return {'paused', due()}
end
local again = call('LLEN', REDELIVERED) > 0
local why = limit > 0 and again and obstacle(30, limit)
if why then
  write_member(token, me)
  return {'dead', why}
end
-- A member takes no more than its share of what waits.
local most = math.ceil(call('LLEN', LIST) / member_count())
most = math.min(tonumber(ARGV[3]), math.max(1, most))
local allowed = not usual and allowance(in_flight())
if allowed then
  if acknowledged > 0 then wake_limited() end
  most = math.min(most, allowed.most, share_of(allowed, place, ranges))
end
local chunks, messages, attempts, taken, dead = {}, 0, {}, 0, 0
if most > 0 then chunks, messages, attempts, taken, dead = take(most, again, 30, limit) end
spend(allowed, messages)
local first = math.max(next_number, tonumber(ARGV[9]))
local fields = {}
for i = 1, #chunks do
  for j = 1, #chunks[i] do
    local k = #fields / 2
    fields[2 * k + 1], fields[2 * k + 2] = first + k, (attempts[k + 1] or 1) .. ':' .. chunks[i][j]
  end
end
push('HSET', APART, fields, 1, #fields)
if messages > 0 then
  local latest = ranges[#ranges]
  if latest and latest[2] == first - 1 then
    latest[2] = first + messages - 1
  else
    ranges[#ranges + 1] = {first, first + messages - 1}
  end
  me.first, me.count = first, messages
  call('SET', KEYS[HOLDER + CONSUMER], uid)
end
write_member(token, me)
call('HSET', KEYS[LEASE + CONSUMER], 'next', first + messages)
normalise(bound, nil, nil, taken > 0)
if messages > 0 or dead ~= 0 then
  pass_on(place)
  return {'ok', chunks, attempts, dead, first}
end
if allowed and call('LLEN', LIST) > 0 then return limited(allowed, place, due(), closed) end
if closed == 0 then
  if place == '' then return {'empty', due()} end
  local left = watched_by_another(place)
  if left then return {'turn', math.min(due(), left)} end
  return {'watch', due(), wait_for_due()}
end
if acknowledged > 0 then wake(TURNS, member_count() - 1) end  -- others may wait for the end
if delayed() > 0 then return {'draining', due(), wait_for_due()} end
if in_flight() == #numbers_in(ranges) then return {'closed'} end
local known = {}
for _, member in pairs(members()) do
  if not member then return {'draining', due(), wait_for_due()} end  -- it comes back when it is time to heal
  known[#known + 1] = member
end
if return_orphans(known) > 0 then return {'ok', {}, {}, 0, first} end
return {'draining', due(), wait_for_due()}
