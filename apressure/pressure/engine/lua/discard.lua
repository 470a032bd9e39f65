-- Delete chosen dead letters, with their reasons, in order up to the first one that is gone, or before the step takes
-- too long.
-- KEYS: those of the prelude, of the dead-letter queue; then 28 the reasons
-- ARGV: 1 uid, 2 sequence, 3 '1' if this repeats a step, 4 '1' if the consumer role was claimed,
--       5... chosen dead letters: each the message, and the time of its reason or ''
-- Returns: {'ok', number deleted (0 if the first one is gone), number of dead letters left} | {'missing'} |
--          {'corrupt', why} |
--          {'busy', role, holder, milliseconds of its lease or -1}
local uid = ARGV[1]

-- Return an answer, and give back the claim.
local function finish(answer)
  unclaim(CONSUMER, ARGV[4])
  return answer
end

local before = recall_rest(ARGV[2], ARGV[3])
if before then return before end
local bound, wrong = check(CONSUMER)
if wrong then return refuse(wrong, CONSUMER, ARGV[4], '', bound) end
survey(bound)
local left = call('LLEN', LIST)
call('LLEN', REDELIVERED)  -- raises an error where it is of the wrong type: before a message is taken
local entered, refusal = enter(CONSUMER, ARGV[4], '')
if not entered then return finish(refusal) end

local reasons = holds_reasons(KEYS[28]) and call('HLEN', KEYS[28]) > 0 and KEYS[28]
if not index_of(LIST, reasons, 5) then return finish({'ok', 0, left}) end
ignore_memory_limit()
local messages, bytes = take_chosen(5, (#ARGV - 4) / 2, left, reasons)
call('SET', KEYS[HOLDER + CONSUMER], uid)
count(CONSUMER, #messages, bytes)
normalise(bound, nil, nil, true)
record(ARGV[2], #messages .. ':' .. left - #messages)
return finish({'ok', #messages, left - #messages})
