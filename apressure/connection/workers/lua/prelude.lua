-- The hash of those that work on a queue has a field for each registration: the worker's id, '/', and more that tells
-- its registrations apart. The value is 'UNTIL NOW LETTER JSON': until when it counts and when it was written, in
-- milliseconds since 1970 by the server's clock; 'c' if it cannot be drained, 'w' if it works, 'd' if somebody has asked
-- it to drain, 'W' and 'D' if somebody wants its stack, too, 'p' for a producer that waits for room; and what
-- core/workers.py reads. The field '' says when to look next for those that have expired.
local MOST_WORKERS = 1000
local MOST_WITH_PRODUCER = 500  -- a producer registers only while there are fewer: workers always find a place
local LOOK_MS = 5000           -- how often somebody looks for them
local KEY_MS = 60000           -- how long the key is kept after the last beat

-- Returns: until when a registration counts, when it was written, its letter, the JSON | nothing, if it is damaged
local function parts(value)
  local ends, written, letter, record = string.match(value or '', '^(%d+) (%d+) ([cwWdDp]) (.*)$')
  if natural(ends) and natural(written) then return tonumber(ends), written, letter, record end
end

-- Returns: whether somebody wants the stack of a registration with this letter
local function shows(letter)
  return letter == 'W' or letter == 'D'
end
