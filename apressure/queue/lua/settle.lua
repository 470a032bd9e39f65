-- Say what became of deliveries: acknowledge some, give others back, renew the lease, or end it.
-- KEYS: those of the prelude
-- ARGV: 1 lease token, 2 milliseconds of the lease, 3 '1' to give the role back, and all that is in flight,
--       4 sequence, 5 '1' if this repeats a step, 6 the first sequence number of those that were never handed out or 0,
--       7 number of arguments that acknowledge, 8... acknowledged ranges (first, last, bytes), then sequence numbers to
--       give back
-- Returns: number of deliveries settled | {'missing'} | {'corrupt', why} | {'lost'}
if ARGV[5] == '1' then
  local before = recall(ARGV[4])
  if before then return before end
end
if call('HGET', KEYS[LEASE + CONSUMER], 'token') ~= ARGV[1] then return {'lost'} end
local bound, wrong = check(CONSUMER)
local leave = ARGV[3] == '1'
if bound and wrong and leave then
  -- What cannot be counted cannot be acknowledged: all comes again, but the role is not stuck.
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
local settled = acknowledge(ARGV, 8, 7 + acks)
local returned = {}
for i = 8 + acks, #ARGV do returned[#returned + 1] = ARGV[i] end
settled = settled + return_deliveries(returned, unseen)
if leave then settled = settled + return_everything(unseen) end
normalise(bound)
if leave or (call('HGET', KEYS[LEASE + CONSUMER], 'hold') ~= '1' and call('EXISTS', INFLIGHT, APART) == 0) then
  call('DEL', KEYS[LEASE + CONSUMER])
  release(CONSUMER)
else
  call('HSET', KEYS[LEASE + CONSUMER], 'deadline', now() + ARGV[2])
end
record(ARGV[4], settled)
return settled
