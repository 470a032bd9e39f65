-- Undo a get whose caller was cancelled: the messages are first in line again, and statistics no longer count them.
-- KEYS: those of the prelude, then the record of the get
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 sequence of the get or '', 4... the messages, oldest first
-- Returns: number of messages | {'missing'} | {'corrupt', why}
local before = recall_number(ARGV[1], ARGV[2])
if before then return before end
local bound, wrong = check(CONSUMER)
if wrong then return wrong end
if ARGV[3] ~= '' then
  -- A replica that took over before it received the get still has the messages.
  local last = string.match(call('GET', KEYS[28]) or '', '^(%d+):')
  if not last or tonumber(last) < tonumber(ARGV[3]) then return 0 end
end
ignore_memory_limit()
local bytes = 0
for i = #ARGV, 4, -1 do
  call('RPUSH', LIST, ARGV[i])
  bytes = bytes + #ARGV[i]
end
shift(3 - #ARGV)
count(CONSUMER, 3 - #ARGV, -bytes)
normalise(bound)
record(ARGV[1], #ARGV - 3)
return #ARGV - 3
