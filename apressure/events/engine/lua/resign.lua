-- A client does not wait any more: the next one takes its place.
-- KEYS: those of the prelude
-- ARGV: 1 place of the client in the line of those that wait for events, or '',
--       2 '1' if it has taken a turn that it does not use, 3 '1' if it has taken a token for room that it does not use,
--       4 '1' if it has taken a token that tells of the end, of an event that is due earlier, or that limits may let one through
-- Returns: 0
if ARGV[2] == '1' then wake(TURNS) end
if ARGV[3] == '1' then wake(ROOM) end
if ARGV[4] == '1' and (is_closed() or call('EXISTS', BOUND) == 0 or call('EXISTS', DELAYED, CONTROL) > 0) then wake(END) end
if ARGV[1] ~= '' then pass_on(ARGV[1]) end
return 0
