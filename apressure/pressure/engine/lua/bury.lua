-- Add dead letters to the dead-letter queue of a queue, with why they are, as a program tells it.
-- KEYS: those of the prelude; then those of the dead-letter queue, as in receive.lua
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3... the oldest first: the message, and its reason
--       'time:attempts:attempt:error', or ''
-- Returns: number of dead letters that were added | {'dead', why it can take none}
local before = recall_number(ARGV[1], ARGV[2])
if before then return before end
local why = misfit(28)
if why then return {'dead', why} end
local key, dead = KEYS[54], {}
local holds = holds_reasons(key)
for i = 3, #ARGV, 2 do
  dead[#dead + 1] = ARGV[i]
  local time, text = string.match(ARGV[i + 1], '^(%d+):(.*)$')
  if holds and time then keep_reason(key, ARGV[i], tonumber(time), text) end
end
bury(28, dead)
record(ARGV[1], #dead)
return #dead
