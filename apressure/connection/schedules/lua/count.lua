-- KEYS: the hash of schedules, the hash of dedup ids
-- Returns: how many there are of both; 0 where another program has written something else
local counts = {}
for i = 1, #KEYS do
  local count = redis.pcall('HLEN', KEYS[i])
  counts[i] = type(count) == 'number' and count or 0
end
return counts
