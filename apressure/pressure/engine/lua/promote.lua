-- Make delayed messages due now, those first that are due first: they go to the end of the line.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 how many at most
-- Returns: number of messages that are due now | {'missing'} | {'corrupt', why}
local before = recall_number(ARGV[1], ARGV[2])
if before then return before end
local bound, wrong = check(PRODUCER)
delayed()  -- raises an error where it is of the wrong type
if wrong then return refuse(wrong, PRODUCER, '0', '', bound) end
survey(bound, true)
local entries = call('ZRANGEBYSCORE', DELAYED, '(' .. now(), '+inf', 'LIMIT', 0, math.min(tonumber(ARGV[3]), MOST_DUE))
if #entries == 0 then return 0 end
respect_memory_limit()
make_due(DELAYED, entries)
record(ARGV[1], #entries)
promote(bound, true)
return #entries
