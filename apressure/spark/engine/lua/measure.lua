-- How far a queue is. Writes nothing.
-- KEYS: those of the queue's prelude
-- ARGV: none
-- Returns: {'ok', messages that have ever left the right end, length, 1 if it is closed or 0} | {'missing'} |
--          {'corrupt', why}
local bound, wrong, length = check(CONSUMER)
if wrong then return wrong end
local consumed = integer(KEYS[MESSAGES + 2 * CONSUMER], '0')
return {'ok', consumed + in_flight(), length, call('EXISTS', CLOSED)}
