-- Note a sign of life of a listener, or that it is gone; forget those of ours that have died, and started tasks that do
-- not run.
-- KEYS: those of the prelude
-- ARGV: 1 '1' if it is gone, 2 listener, 3 a name that no other block has, 4 milliseconds for which it lives
-- Returns: number of listeners that are registered now
ignore_memory_limit()
local member = ARGV[2] .. ' ' .. ARGV[3]
if ARGV[1] == '1' then
  depart(member)
else
  call('ZADD', NODES, now() + tonumber(ARGV[4]), member)
  call('ZINCRBY', QUEUES, call('SADD', LISTENERS, ARGV[2]), NAME)
end
bury()
tidy_started()
return call('SCARD', LISTENERS)
