-- KEYS: the hash of schedules
-- Returns: how many there are; 0 if another program has written something else there
local count = redis.pcall('HLEN', KEYS[1])
return type(count) == 'number' and count or 0
