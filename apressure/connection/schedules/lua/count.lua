-- KEYS: the hash of schedules, the hash of dedup ids, the hash of workers
-- Returns: how many there are of the first two; the time in milliseconds since 1970; the names and values of workers,
-- one after the other. What another program has written instead, or what this user may not see, is left out.
local counts = {}
for i = 1, #KEYS do
  local count = redis.pcall('HLEN', KEYS[i])
  counts[i] = type(count) == 'number' and count or 0
end
local found = {counts[1], counts[2], now()}
local names = counts[3] > 0 and counts[3] <= 1001 and redis.pcall('HKEYS', KEYS[3]) or {}
for i = 1, #names do
  local size = redis.pcall('HSTRLEN', KEYS[3], names[i])
  if type(size) ~= 'number' or size <= 4096 then
    local values = redis.pcall('HMGET', KEYS[3], names[i])
    if values[1] then found[#found + 1], found[#found + 2] = names[i], values[1] end
  end
end
return found
