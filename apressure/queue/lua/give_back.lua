-- Undo a get whose caller was cancelled: the messages become the first in line again, the statistics forget them.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3... the messages, oldest first
-- Returns: number of messages | {'missing'} | {'corrupt', why}
local before = recall(ARGV[1], ARGV[2])
if before then return before end
local bound, wrong = check(CONSUMER)
if wrong then return wrong end
ignore_memory_limit()
local bytes = 0
for i = #ARGV, 3, -1 do
  call('RPUSH', LIST, ARGV[i])
  bytes = bytes + #ARGV[i]
end
count(CONSUMER, 2 - #ARGV, -bytes)
normalise(bound)
record(ARGV[1], #ARGV - 2)
return #ARGV - 2
