-- Acknowledge deliveries, give others back, and renew the lease, or end it.
-- KEYS: those of the prelude; where there are errors, or redelivered messages are acknowledged, then 28 the reasons of
--       the dead-letter queue
-- ARGV: 1 lease token, 2 milliseconds of the lease, 3 '1' to give the role back, and all that is in flight,
--       4 sequence, 5 '1' if this repeats a step, 6 the first number of deliveries that were never handed out, or 0,
--       7 number of arguments that acknowledge, 8... acknowledged ranges (first, last, bytes), then
--       deliveries to give back, as `read_returned` reads them; with 3, errors only say why what goes back failed
-- Returns: number of deliveries settled | {'ok', that number, 1} (the queue is paused or held) | {'missing'} |
--          {'corrupt', why} | {'lost'}
if ARGV[5] == '1' then
  local before = recall_number(ARGV[4])
  if before then return before end
end
-- (If another program overwrote the number of the next delivery, numbers no longer identify a message.)
local lease = call('HMGET', KEYS[LEASE + CONSUMER], 'token', 'next', 'hold')
if lease[1] ~= ARGV[1] or not natural(lease[2]) then return {'lost'} end
local bound, wrong = check(CONSUMER)
in_flight()  -- raises an error where a key is of the wrong type, and so does the next line
call('LLEN', REDELIVERED)
local leave = ARGV[3] == '1'
if bound and wrong and leave then
  -- A statistic is broken, so nothing can be acknowledged: all messages come again, and the role is free.
  ignore_memory_limit()
  return_everything()
  normalise(bound)
  call('DEL', KEYS[LEASE + CONSUMER])
  release(CONSUMER)
end
if wrong then return refuse(wrong, CONSUMER, '0', ARGV[1], bound) end
ignore_memory_limit()
local acks, unseen = tonumber(ARGV[7]), tonumber(ARGV[6])
if unseen == 0 then unseen = nil end
local returned, errors, dues, released, replies = read_returned(8 + acks, leave)
if errors then note_failures(errors, KEYS[28]) end
forget_failures(ARGV, 8, 7 + acks, KEYS[28])
local settled = acknowledge(ARGV, 8, 7 + acks)
send_replies(replies, ARGV, 8, 7 + acks)
settled = settled + put_off(ARGV[4], dues) + return_deliveries(returned, unseen, released)
if leave then settled = settled + return_everything(unseen) end
if delayed() > 0 then promote(bound) end
normalise(bound)
if leave or (lease[3] ~= '1' and call('EXISTS', INFLIGHT, APART) == 0) then
  call('DEL', KEYS[LEASE + CONSUMER])
  release(CONSUMER)
else
  call('HSET', KEYS[LEASE + CONSUMER], 'deadline', now() + ARGV[2], 'duration', ARGV[2])
end
record(ARGV[4], settled)
if heed_control(settled) and not leave then return {'ok', settled, 1} end
return settled
