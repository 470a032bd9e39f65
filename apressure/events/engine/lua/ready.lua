-- How many of the events that wait may be handed out now: for an okq server whose clients wait.
-- KEYS: those of the prelude
-- ARGV: none
-- Returns: {'ready', how many, milliseconds after which the limits let one more through or -1} | {'corrupt', why}
local wrong = damaged_limits()
if wrong then return wrong end
if is_paused() then return {'ready', 0, -1} end
ignore_memory_limit()
local waiting, allowed = call('LLEN', UNCLAIMED), allowance(call('LLEN', CLAIMED))
if not allowed then return {'ready', waiting, -1} end
return {'ready', math.min(waiting, allowed.most), allowed.after or -1}
