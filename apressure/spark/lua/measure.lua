-- What a snapshot of a queue is made of. Writes nothing.
-- KEYS: those of the queue's prelude
-- ARGV: none
-- Returns: {'ok', messages that have left the right end since ever, length, 1 if it is closed or 0} | {'missing'} |
--          {'corrupt', why}
local bound, wrong, length = check(CONSUMER)
if wrong then return wrong end
local consumed = integer(KEYS[MESSAGES + 2 * CONSUMER], '0')
return {'ok', consumed + in_flight(), length, call('EXISTS', CLOSED)}
