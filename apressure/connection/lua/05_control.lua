-- CONTROL is a hash of what was said of the queue as a whole: `paused` ('since:client'), while clients of ours take
-- nothing; `held` and `held_for`, until when nothing is handed out, and for how long that was said, in milliseconds;
-- `count`, `per` (milliseconds) and perhaps `burst` of its rate; `concurrency`, how many messages may be in flight; and
-- `key_most`, how many of a key, 0 for any number, `key_fair` and perhaps `key_pointer`: see `key_terms`.
-- `next` is the state of the rate: when as many are due as were handed out, at an even pace (GCRA), in milliseconds.
-- A message counts for its cost, which may be more than there was left: then `debt` says since when, in milliseconds.
-- `spent` says which `spend`s have been counted: 'SPENDER:NUMBER;' for each of those that have spent lately, the latest
-- one last. The numbers of a spender come in order.

-- Are clients of ours to take nothing?
local function is_paused()
  return call('HMGET', CONTROL, 'paused')[1] and true or false
end

-- Since when clients of ours are to take nothing, in milliseconds since 1970; 0 if they may; 1 if that is damaged.
local function paused_since()
  local said = call('HMGET', CONTROL, 'paused')[1]
  return said and (natural(string.match(said, '^(%d+):')) or 1) or 0
end

-- Milliseconds for which nothing is handed out; 0 where that is not so. (The server's clock may have been set back.)
local function hold_left()
  local times = call('HMGET', CONTROL, 'held', 'held_for')
  return math.max(0, math.min((natural(times[1]) or 0) - now(), natural(times[2]) or 0))
end

-- Are clients of ours to give back what they have not handed out yet? 1 or 0.
local function is_halted()
  if call('EXISTS', CONTROL) == 0 then return 0 end
  -- Another program may have damaged it, which steps that take tell of: that is no reason not to renew or to settle.
  local readable, halted = pcall(function() return is_paused() or hold_left() > 0 end)
  return readable and halted and 1 or 0
end

-- Returns: {held, held_for, count, per, burst, concurrency}, each nil where it was not said | nil, the answer that says
--          that another program has damaged them
local function limits_there()
  return naturals(CONTROL, 'held', 'held_for', 'count', 'per', 'burst', 'concurrency')
end

-- Returns: nil | the answer that says that another program has damaged the limits
local function damaged_limits()
  local _, wrong = limits_there()
  return wrong
end

-- How many messages may be handed out now. It corrects times, so call it where a step may write.
-- flying: how many are in flight; nil where that does not matter
-- Returns: nil, where nothing limits the queue | {most, after = milliseconds until one more may be, nil where one has
--          to be settled first; units = how much these may cost until no more may be handed out; the others: for
--          `spend`}
local function allowance(flying)
  local held, longest, number, per, burst, concurrency = unpack(limits_there() or {}, 1, 6)
  local most, after, last, interval, size, ahead, debt = math.huge, nil, nil, nil, nil, nil, nil
  if (number or 0) > 0 and (per or 0) > 0 then
    local state, late = call('HMGET', CONTROL, 'next', 'debt'), nil
    debt = state[2]
    most, after, last, interval, late, size, ahead = pace_of(number, per, burst, state[1], natural(debt or nil))
    if late then call('HSET', CONTROL, 'next', string.format('%.3f', last)) end
    if most >= 1 then after = nil end
  end
  local units = most
  if held then
    local left = math.min(held - now(), longest or 0)
    if left <= 0 then
      call('HDEL', CONTROL, 'held', 'held_for')
    else
      if held - now() > left then call('HSET', CONTROL, 'held', now() + left) end  -- the clock was set back
      most, units, after = 0, 0, math.max(after or 0, left)
    end
  end
  if concurrency == 0 then concurrency = nil end
  if concurrency and flying and concurrency - flying < most then
    most = math.max(0, concurrency - flying)
    if most == 0 then after = nil end
  end
  if most == math.huge then return nil end
  return {
    most = most, after = after, units = units, next = last, interval = interval, size = size, ahead = ahead,
    debt = debt, concurrency = concurrency,
  }
end

-- Messages that cost so much together were handed out under this allowance; below 0, they cost less than was said.
local function spend(allowed, units)
  if not (allowed and allowed.interval) or units == 0 then return end
  local due = allowed.next + units * allowed.interval
  call('HSET', CONTROL, 'next', written(due))
  local since = allowed.next - allowed.ahead
  if due - since > allowed.size * allowed.interval + 0.01 then
    call('HSET', CONTROL, 'debt', string.format('%.0f', math.floor(since)))
  elseif allowed.debt then
    call('HDEL', CONTROL, 'debt')
  end
end

-- Does a program say that messages have cost so much more, or less, than was counted? ARGV has from first on 'spent',
-- and how much, the spender and its number, with ':' in between: one that was counted before is not counted again.
-- Returns: nil, if it says something else | how much
local function count_spent(first)
  if ARGV[first] ~= 'spent' then return nil end
  local units, spender, number = string.match(ARGV[first + 1], '^(%-?%d+):(%x+):(%d+)$')
  local allowed = allowance()
  if not (allowed and allowed.interval) then return 0 end
  local said, last, others = redis.pcall('HGET', CONTROL, 'spent'), 0, {}
  for other, latest in string.gmatch(type(said) == 'string' and said or '', '(%x+):(%d+);') do
    if other == spender then
      last = tonumber(latest)
    else
      others[#others + 1] = other .. ':' .. latest .. ';'
    end
  end
  if tonumber(number) <= last then return 0 end
  spend(allowed, tonumber(units))
  others[#others + 1] = spender .. ':' .. number .. ';'
  call('HSET', CONTROL, 'spent', table.concat(others, '', math.max(1, #others - 99)))
  return tonumber(units)
end

-- Does a program change the bound? ARGV has from first on 'bound', and the bound.
-- Returns: nil, if it says something else | the bound, a text
local function bound_said(first)
  return ARGV[first] == 'bound' and ARGV[first + 1] or nil
end

-- Is there a limit of how many are in flight? Then one that is settled makes room for another.
-- (As in `is_halted`, damage does not matter here.)
local function limits_flight()
  return type(redis.pcall('HGET', CONTROL, 'concurrency')) == 'string'
end

-- Change limits: names and values in ARGV from first on. '' removes one. `held` is milliseconds from now: 0 ends a
-- hold, and any other number makes it no shorter than it is.
local function set_limits(first)
  local PACE = {count = true, per = true, burst = true}
  for i = first, #ARGV, 2 do
    local name, value = ARGV[i], ARGV[i + 1]
    if name == 'held' and tonumber(value) > 0 then
      if tonumber(value) > hold_left() then
        call('HSET', CONTROL, 'held', now() + tonumber(value), 'held_for', value)
      end
    elseif name == 'held' then
      call('HDEL', CONTROL, 'held', 'held_for')
    elseif value == '' then
      call('HDEL', CONTROL, name)
      if name == 'count' then call('HDEL', CONTROL, 'next', 'debt', 'spent') end
    else
      -- What is ahead was so at another pace.
      if PACE[name] and call('HGET', CONTROL, name) ~= value then call('HDEL', CONTROL, 'debt') end
      call('HSET', CONTROL, name, value)
    end
  end
end

-- What `Limits` of Python reads: {milliseconds of a hold, count, per, burst, concurrency}, each 0 where there is none;
-- then, where keys matter, {how many of a key or 0, 1 if they take turns, the pointer or ''}
local function told_limits()
  local said = call('HMGET', CONTROL, 'count', 'per', 'burst', 'concurrency', 'key_most', 'key_fair', 'key_pointer')
  local keys = said[5] and {natural(said[5]) or 0, natural(said[6]) or 0, said[7] or ''} or nil
  return {hold_left(), natural(said[1]) or 0, natural(said[2]) or 0, natural(said[3]) or 0, natural(said[4]) or 0, keys}
end
