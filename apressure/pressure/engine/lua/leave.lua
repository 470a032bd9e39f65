-- Renew the lease of an exclusive producer, or end it.
-- KEYS: those of the prelude
-- ARGV: 1 lease token, 2 milliseconds of the lease, 3 '1' to give the role back, 4 sequence,
--       5 '1' if this repeats a step
-- Returns: 1 | {'missing'} | {'lost'}
if ARGV[5] == '1' and recall(ARGV[4]) then return 1 end
if call('HGET', KEYS[LEASE + PRODUCER], 'token') ~= ARGV[1] then return {'lost'} end
call('LLEN', KEYS[FREE + PRODUCER])  -- raises an error where it is of the wrong type
ignore_memory_limit()
if call('EXISTS', BOUND) == 0 then return refuse({'missing'}, PRODUCER, '0', ARGV[1]) end
if ARGV[3] == '1' then
  call('DEL', KEYS[LEASE + PRODUCER])
  release(PRODUCER)
else
  call('HSET', KEYS[LEASE + PRODUCER], 'deadline', now() + ARGV[2], 'duration', ARGV[2])
end
record(ARGV[4], 1)
return 1
