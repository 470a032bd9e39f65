-- Add dead letters, with why they are, as a program tells it.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 '1' if the queue must have been created,
--       4... the oldest first: id, reason 'time:attempts:attempt:error' or '', contents
-- Returns: {'pushed', number of dead letters that were added} | {'missing'} | {'corrupt', why}
local before = recall(ARGV[1], ARGV[2])
if before then return {'pushed', before} end
local bound, created = state(ARGV[3] == '1')
if not bound then return created end
if not created then check_types() end
respect_memory_limit()
local letters = {}
for i = 4, #ARGV, 3 do
  local why = ARGV[i + 1] ~= '' and pack(ARGV[i + 1])
  letters[#letters + 1] = (why and '+' or '') .. pack(ARGV[i]) .. (why or '') .. ARGV[i + 2]
end
push('LPUSH', DEAD, letters)
record(ARGV[1], #letters)
return {'pushed', tostring(#letters)}
