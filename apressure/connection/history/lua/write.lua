-- Keep the record of a minute. All that watch the queue write it, so there may be one already.
-- KEYS: the list
-- ARGV: 1 the number of the minute, 2 the record, 3 how many records are kept, 4 milliseconds until the list expires
-- Returns: 1, or 0 if there is one of this minute, or of a later one, or if this minute has not begun by our clock
local number, current = tonumber(ARGV[1]), math.floor(redis.call('TIME')[1] / 60)
if number > current + 1 then return 0 end  -- the writer's clock is fast
local latest = redis.call('LINDEX', KEYS[1], -1)
latest = latest and tonumber(string.match(latest, '^%d+'))
if latest and latest > current + 1 then  -- our clock was set back, or another program has written it
  redis.call('DEL', KEYS[1])
elseif latest and latest >= number then
  return 0
end
redis.call('RPUSH', KEYS[1], ARGV[2])
redis.call('LTRIM', KEYS[1], -tonumber(ARGV[3]), -1)
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
