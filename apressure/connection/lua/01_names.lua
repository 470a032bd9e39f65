-- What the scripts of all rooms share: names, and functions. A script gets those functions that it uses.
-- The room's own prelude follows. It says which keys these are, and how long a client may stay silent:
-- LIST has what waits in the queue. OP is the record of the step. TURNS has a token for the next client in line, and
-- WATCH says which client watches the queue (see `watched_by_another`), at least every WATCH_MS. CONTROL says whether
-- the queue is paused, and its limits.
local LIST, OP, TURNS, WATCH, WATCH_MS, CONTROL
local call = redis.call
local RECORD_MS = 300000       -- how long the result of a step is kept for its repeat
local CHUNK = 1000             -- arguments of one command; Lua's stack holds fewer than 8000
