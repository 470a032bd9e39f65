-- Remove a registration.
-- KEYS: the hash of workers
-- ARGV: the registration's name
-- Returns: 1 if it was there
local removed = call('HDEL', KEYS[1], ARGV[1])
if call('HLEN', KEYS[1]) == 1 then call('HDEL', KEYS[1], '') end
return removed
