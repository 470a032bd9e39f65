-- Remove all events, those in flight included (specification: QFLUSH); with '1', everything else of the queue, too.
-- KEYS: those of the prelude, then the schedules, the dedup ids, and what tells those that wait for the end
-- ARGV: 1 '1' to delete the queue, 2 '1' if it must exist
-- Returns: {'flushed', number of events that were removed} | {'missing'}
local waiting, claimed = occupied(), call('LLEN', CLAIMED)
local missing = ARGV[2] == '1' and call('EXISTS', UNCLAIMED, CLAIMED, ITEMS, CONSUMERS, BOUND, DELAYED, LINES) == 0
for from = 0, claimed - 1, CHUNK do
  local locks = call('LRANGE', CLAIMED, from, from + CHUNK - 1)
  for i = 1, #locks do locks[i] = lock_of(locks[i]) end
  call('DEL', unpack(locks))
end
call('DEL', UNCLAIMED, CLAIMED, ITEMS, EXPIRY, ATTEMPTS, ERRORS, SCAN, DELAYED, LATER, EXPIRES, KEYED, LINES, RING)
if ARGV[1] == '1' then
  local gone = KEYS[#KEYS]
  call('DEL', CONSUMERS, CLOSED, DEAD, WATCH, PUTTERS, EXPIRED, KEYS[#KEYS - 2], KEYS[#KEYS - 1])
  if call('DEL', BOUND) == 1 then wake_all(gone) end
  if call('DEL', CONTROL) == 1 then wake_all(RESUMED) end
end
tell_all()
reply_to_all()
if missing then return {'missing'} end  -- only keys of ours may have been left
return {'flushed', waiting + claimed}
