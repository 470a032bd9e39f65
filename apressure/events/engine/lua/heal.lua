-- Put back what has expired, and index claims that okq made.
-- KEYS: those of the prelude
-- ARGV: none
-- Returns: {'healed', number of events that were put back, milliseconds until the next look is due, or -1} |
--          {'corrupt', why}
local bound, created = state(false)
if not bound then return created end
if not created then check_types() end
ignore_memory_limit()
local back = heal()
return {'healed', back, due()}
