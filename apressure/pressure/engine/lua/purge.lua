-- Delete waiting messages, the oldest first; they count as consumed. Messages in flight stay, so it works beside the
-- lease of a consumer of ours.
-- KEYS: those of the prelude, 24 the reasons, if this is a dead-letter queue
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 the most messages to delete
-- Returns: {'ok', number deleted, number of messages left} | {'missing'} | {'corrupt', why} |
--          {'busy', role, holder, -1} (a client that works step by step has the role, and may be taking a message)
local before = recall_rest(ARGV[1], ARGV[2])
if before then return before end
local bound, wrong = check(CONSUMER)
if wrong then return refuse(wrong, CONSUMER, '0', '', bound) end
survey(bound)
if call('LLEN', LIST) == 0 then return {'ok', 0, 0} end
if hidden(CONSUMER) then return {'busy', name_of(CONSUMER), call('GET', KEYS[HOLDER + CONSUMER]) or '', -1} end
call('LLEN', REDELIVERED)  -- raises an error where it is of the wrong type: before a message is taken

ignore_memory_limit()
local chunks, messages, bytes = pop(tonumber(ARGV[3]))
chunks = flat(chunks)
attempts_of(chunks)  -- forgets them
local reasons = holds_reasons(KEYS[24]) and call('HLEN', KEYS[24]) > 0
for i = 1, reasons and #chunks or 0 do drop_reason(KEYS[24], chunks[i]) end
count(CONSUMER, messages, bytes)
normalise(bound, nil, nil, true)
local left = call('LLEN', LIST)
record(ARGV[1], messages .. ':' .. left)
return {'ok', messages, left}
