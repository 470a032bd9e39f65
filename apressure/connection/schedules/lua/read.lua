-- KEYS: the hash of schedules, from names to records
-- Returns: {the time in milliseconds since 1970, the names and records one after the other}
local time = redis.call('TIME')
return {time[1] * 1000 + math.floor(time[2] / 1000), redis.call('HGETALL', KEYS[1])}
