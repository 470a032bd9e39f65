-- A client no longer waits for messages: another one watches the queue.
-- KEYS: those of the prelude, 28 turns, 29 watch
-- ARGV: 1 place of this client in the line, 2 '1' if it had its turn and did not use it
-- Returns: 1
ignore_memory_limit()
pass_on(ARGV[1])
if ARGV[2] == '1' then wake(TURNS) end
return 1
