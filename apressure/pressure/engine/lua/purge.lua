-- Delete waiting messages, the oldest first, then delayed ones; those that count as produced count as consumed.
-- Messages in flight stay, so it works beside the lease of a consumer of ours.
-- KEYS: those of the prelude, 28 the reasons, if this is a dead-letter queue
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 the most messages to delete
-- Returns: {'ok', number deleted, number of messages left, delayed ones included} | {'missing'} | {'corrupt', why} |
--          {'busy', role, holder, -1} (a client that works step by step has the role, and may be taking a message)
local before = recall_rest(ARGV[1], ARGV[2])
if before then return before end
local bound, wrong = check(CONSUMER)
if wrong then return refuse(wrong, CONSUMER, '0', '', bound) end
survey(bound)
local waiting = call('LLEN', LIST)
if waiting == 0 and delayed() == 0 then return {'ok', 0, 0} end
if waiting > 0 and hidden(CONSUMER) then
  return {'busy', name_of(CONSUMER), call('GET', KEYS[HOLDER + CONSUMER]) or '', -1}
end
call('LLEN', REDELIVERED)  -- raises an error where it is of the wrong type: before a message is taken

ignore_memory_limit()
local chunks, messages, bytes = pop(tonumber(ARGV[3]))
chunks = flat(chunks)
attempts_of(chunks)  -- forgets them
local reasons = holds_reasons(KEYS[28]) and call('HLEN', KEYS[28]) > 0
for i = 1, reasons and #chunks or 0 do drop_reason(KEYS[28], chunks[i]) end
local fresh = 0  -- delayed ones that were never in the queue
while delayed() > 0 and messages < tonumber(ARGV[3]) and bytes < 1048576 do
  local some = call('ZPOPMIN', DELAYED, math.min(20, ARGV[3] - messages))
  for i = 1, #some, 2 do
    local message, times = look_later(some[i])
    bytes = bytes + #message
    if times == 0 then fresh, bytes = fresh + 1, bytes - #message end
  end
  messages = messages + #some / 2
end
count(CONSUMER, messages - fresh, bytes)
normalise(bound, nil, nil, waiting > 0)
if bound > 0 and delayed() == 0 then wake(ROOM) end
if call('EXISTS', CLOSED) == 1 and delayed() == 0 then wake(SOONER) end  -- the end may have come
local left = call('LLEN', LIST) + delayed()
record(ARGV[1], messages .. ':' .. left)
return {'ok', messages, left}
