-- What the usual cases share. KEYS: those of ../prelude.lua
local TURNS, WATCH = KEYS[10], KEYS[11]
local WATCH_MS = 6000  -- as in ../prelude.lua

-- How many events are delayed; nil if more is known of an event than its contents, or one is due: that is no usual case.
local function delayed_beside(id)
  local delayed = KEYS[19]
  for _, known in pairs({KEYS[8], KEYS[20], KEYS[21]}) do
    if redis.pcall('HEXISTS', known, id) ~= 0 then return nil end  -- of a wrong type: the step may not look at it
  end
  return call('EXISTS', delayed) == 0 and 0 or not_due(delayed, 1000)
end

-- The queue's bound, 0 for none, and whether it has one; nil if it is damaged, or missing where it must be there, or if
-- this client has made this step or a later one: that is no usual case.
local function bound_for(number, must)
  local last, bound = call('GET', KEYS[26]), call('GET', KEYS[5])
  if repeated(last, number) then return nil end
  if not bound then return must ~= '1' and 0 or nil end
  return #bound <= 13 and string.find(bound, '^%d+$') and tonumber(bound) or nil, true
end
