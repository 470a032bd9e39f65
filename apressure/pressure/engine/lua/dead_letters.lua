-- Look at dead letters, the oldest first, and at the reason of each. Writes nothing.
-- KEYS: those of the prelude, of the dead-letter queue; then 28 the reasons
-- ARGV: 1 how many to pass over, 2 the most to return (up to about 1 MiB of them; fewer where many have equal ones)
-- Returns: {'ok', {messages}, {the reason of each: 'time:attempts:attempt:error', or ''}, number of dead letters} |
--          {'missing'}
if call('EXISTS', BOUND) == 0 then return {'missing'} end
local passed, length = tonumber(ARGV[1]), call('LLEN', LIST)
local messages = page_of(LIST, passed, math.min(tonumber(ARGV[2]), length - passed))

local reasons, known, given, sought = {}, holds_reasons(KEYS[28]), {}, 0
for i = 1, #messages do
  if sought >= MOST_PASSED then  -- the next step returns the rest
    for j = #messages, i, -1 do messages[j] = nil end
    break
  end
  local lines = known and lines_of(KEYS[28], letter_field(messages[i])) or {}
  local place = 1
  if #lines > 1 then
    -- Several have, or had, this content. The oldest may have been taken away without their reasons: the newest of them
    -- has the latest reason.
    place = nil
    sought = sought + length
    for j, index in ipairs(call('LPOS', LIST, messages[i], 'COUNT', #lines)) do
      if index == length - passed - i then place = j end
    end
  elseif given[messages[i]] then
    place = nil
  end
  given[messages[i]] = true
  reasons[i] = place and lines[#lines + 1 - place] or ''
end
return {'ok', messages, reasons, length}
