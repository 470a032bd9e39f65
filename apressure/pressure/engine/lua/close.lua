-- Close a queue (specification: Close).
-- KEYS: those of the prelude
-- ARGV: 1 uid, 2 sequence, 3 '1' if this repeats a step, 4 '1' if the producer role was claimed, 5 lease token or ''
-- Returns: 1 | {'missing'} | {'corrupt', why} | {'closed'} | {'lost'} |
--          {'busy', role, holder, milliseconds of its lease or -1}
if recall(ARGV[2], ARGV[3]) then return 1 end
local bound, wrong = check(PRODUCER)
if wrong then return refuse(wrong, PRODUCER, ARGV[4], ARGV[5], bound) end
local closed = survey(bound, false, ARGV[5] ~= '' and PRODUCER or nil)
local entered, refusal = enter(PRODUCER, ARGV[4], ARGV[5])
if not entered then return refusal end

ignore_memory_limit()  -- closing lets consumers end, which helps a full server
unclaim(PRODUCER, ARGV[4])
call('SET', KEYS[HOLDER + PRODUCER], ARGV[1])
if closed == 1 then return {'closed'} end
call('LPUSH', CLOSED, 0, 0)
record(ARGV[2], 1)
return 1
