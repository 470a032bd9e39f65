-- Get up to a number of messages (specification: Get). What a closed queue still holds is delivered.
-- KEYS: those of the prelude
-- ARGV: 1 uid, 2 '1' if the consumer role was claimed, 3 the most messages to get,
--       4 sequence, where a server that takes over has to know that these were taken, or ''
-- Returns: {'messages', {messages}...} | {'empty'} | {'closed'} | {'missing'} | {'corrupt', why} |
--          {'busy', role, holder, milliseconds of its lease or -1}
local held = ARGV[2]
local bound, wrong, length, permits = check(CONSUMER)
if wrong then return refuse(wrong, CONSUMER, held, '', bound) end
local closed, usual, leased = survey(bound)
if not usual then length, permits = nil, nil end  -- what was healed may have changed them
local entered, refusal = enter(CONSUMER, held, '', usual and not leased)
if not entered then return refusal end

ignore_memory_limit()
unclaim(CONSUMER, held)
call('SET', KEYS[HOLDER + CONSUMER], ARGV[1])
local portions, messages, bytes = pop(tonumber(ARGV[3]))
normalise(bound, length and length - messages, permits)
if messages == 0 then return {closed == 1 and 'closed' or 'empty'} end
count(CONSUMER, messages, bytes)
if ARGV[4] ~= '' then record(ARGV[4], messages) end
return {'messages', unpack(portions)}
