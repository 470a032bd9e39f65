-- Settle deliveries of a member of the clients that share the consumer role, and renew its lease, or end it.
-- KEYS: those of the prelude, 28 turns, 29 watch; where there are errors, or redelivered messages are acknowledged,
--       then 30 the reasons of the dead-letter queue
-- ARGV: 1 member's token, 2 milliseconds of the lease, 3 '1' to leave: then all that it has goes back,
--       4 sequence, 5 '1' if this repeats a step, 6 the first number of those that were never handed out or 0,
--       7 place of this client in the line, 8 number of arguments that acknowledge,
--       9... acknowledged ranges (first, last, bytes), then what to give back, as `read_returned` reads it; with 3,
--        errors only say why what goes back failed
-- Returns: number of deliveries settled | {'ok', that number, 1} (the queue is paused or held) | {'missing'} |
--          {'corrupt', why} | {'lost'}
if ARGV[5] == '1' then
  local before = recall_number(ARGV[4])
  if before then return before end
end
local token, leave = ARGV[1], ARGV[3] == '1'
local lease = call('HMGET', KEYS[LEASE + CONSUMER], 'token', MEMBER .. token)
local me = member_of(lease[2])
if lease[1] ~= SHARED or not me then return no_member() end
local bound, wrong = check(CONSUMER)
in_flight()  -- this, and the next, raise an error where the keys are of a wrong type
call('LLEN', REDELIVERED)
-- What cannot be counted cannot be acknowledged: all comes again, but the role is not stuck.
if bound and wrong and leave then heal_members(bound, token) end
if wrong then return refuse(wrong, CONSUMER, '0', SHARED, bound) end
ignore_memory_limit()
local last_ack, unseen = 8 + tonumber(ARGV[8]), tonumber(ARGV[6])
if unseen == 0 then unseen = nil end
local acks, returned = owned_acks(me, ARGV, 9, last_ack), {}
local given_back, errors, dues, released, replies = read_returned(last_ack + 1, leave)
for i = 1, #given_back do
  if owns(me, given_back[i], given_back[i]) then returned[#returned + 1] = given_back[i] end
end
for number in pairs(errors or {}) do
  if not owns(me, number, number) then errors[number] = nil end
end
if errors then note_failures(errors, KEYS[30]) end
forget_failures(acks, 1, #acks, KEYS[30])
for number in pairs(dues) do
  if not owns(me, number, number) then dues[number] = nil end
end
local settled, later = acknowledge(acks, 1, #acks), {}
send_replies(replies, acks, 1, #acks)
for number in pairs(dues) do later[#later + 1] = {number, number} end
table.sort(later, function(a, b) return a[1] < b[1] end)
settled = settled + put_off(ARGV[4], dues)
if leave then returned = numbers_in(me.ranges) end
settled = settled + put_back(returned, unseen, released)
local left
if leave then
  call('HDEL', KEYS[LEASE + CONSUMER], MEMBER .. token)
  local _, _, others = heal_members(bound)
  left = #others
  pass_on(ARGV[7])
else
  local given = {}
  for i = 1, #returned do given[i] = {returned[i], returned[i]} end
  local _
  _, me.ranges = split(me.ranges, ranges_in(acks, 1, #acks, 3))
  _, me.ranges = split(me.ranges, given)
  _, me.ranges = split(me.ranges, later)
  renew_member(me, ARGV[2])
  write_member(token, me)
  heal_members_in_time(bound)
  left = member_count()
  normalise(bound)
end
if delayed() > 0 then promote(bound) end
-- Members that wait for the end learn that it may have come.
if settled > 0 and left > 0 and call('EXISTS', CLOSED) == 1 then wake(TURNS, left) end
record(ARGV[4], settled)
if heed_control(settled) and not leave then return {'ok', settled, 1} end
return settled
