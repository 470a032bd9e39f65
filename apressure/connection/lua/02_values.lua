local clock
local function now()
  if not clock then
    local time = call('TIME')
    clock = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  end
  return clock
end

-- The number in a text of ours, or nil: another program may have written there.
-- (Lua writes numbers of up to 14 digits without an exponent.)
local function natural(text)
  return text and #text <= 13 and string.find(text, '^%d+$') and tonumber(text) or nil
end

-- Fields of a hash of ours that are natural numbers, or missing.
-- Returns: their numbers, with nil for a missing one | nil, the answer that says what is wrong
local function naturals(key, ...)
  local values = call('HMGET', key, ...)
  for i = 1, #values do
    local number = natural(values[i])
    if values[i] and not number then
      return nil, {'corrupt', key .. ' has a field ' .. select(i, ...) .. ' that is not a number'}
    end
    values[i] = number
  end
  return values
end

-- Run a command with any number of values, in chunks.
-- first, last: which of the values; all by default.
-- Returns: the answer to the last command
local function push(command, key, values, first, last)
  local answer
  last = last or #values
  for i = first or 1, last, CHUNK do
    answer = call(command, key, unpack(values, i, math.min(i + CHUNK - 1, last)))
  end
  return answer
end

-- What an answer tells of dead letters, for the log: it names the first 20.
-- letters: {{name, contents, how often it was delivered}, ...}
-- Returns: {how many, name, how often, how its contents begin, the next name...} | 0 for none
local function told(letters)
  if #letters == 0 then return 0 end
  local found = {#letters}
  for i = 1, math.min(#letters, 20) do
    local name, contents, times = unpack(letters[i])
    found[3 * i - 1], found[3 * i], found[3 * i + 1] = tostring(name), times, string.sub(contents or '', 1, 1001)
  end
  return found
end
