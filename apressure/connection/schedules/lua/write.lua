-- Write the record of a schedule, if it was as its writer has read it.
-- KEYS: the hash of schedules
-- ARGV: the name, the record before, the record after that; '' for none
-- Returns: 1, or 0 if it was not
local kept = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if kept ~= ARGV[2] then return kept == ARGV[3] and 1 or 0 end  -- no two writers write the same record
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return 1
