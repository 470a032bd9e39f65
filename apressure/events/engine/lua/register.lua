-- Note a sign of life of consumers, or that they are gone; forget those that have died.
-- KEYS: those of the prelude
-- ARGV: 1 '1' if they are gone, 2... ids of consumers
-- Returns: number of consumers that are registered now
local time, args = call('TIME'), {}
for i = 2, #ARGV do
  if ARGV[1] ~= '1' then args[#args + 1] = time[1] end
  args[#args + 1] = ARGV[i]
end
push(ARGV[1] == '1' and 'ZREM' or 'ZADD', CONSUMERS, args)
call('ZREMRANGEBYSCORE', CONSUMERS, '-inf', tonumber(time[1]) - STALE_S)
return call('ZCARD', CONSUMERS)
