-- CONTROL is a hash of what was said of the queue as a whole: `paused` ('since:client'), while clients of ours take
-- nothing; `held` and `held_for`, until when nothing is handed out, and for how long that was said, in milliseconds;
-- `count`, `per` (milliseconds) and perhaps `burst` of its rate; and `concurrency`, how many messages may be in flight.
-- `next` is the state of the rate: when as many are due as were handed out, at an even pace (GCRA), in milliseconds.

-- Are clients of ours to take nothing?
local function is_paused()
  return call('HEXISTS', CONTROL, 'paused') == 1
end

-- Milliseconds for which nothing is handed out; 0 where that is not so. (The server's clock may have been set back.)
local function held_for()
  local times = call('HMGET', CONTROL, 'held', 'held_for')
  return math.max(0, math.min((natural(times[1]) or 0) - now(), natural(times[2]) or 0))
end

-- Are clients of ours to give back what they have not handed out yet? 1 or 0.
local function is_halted()
  if call('EXISTS', CONTROL) == 0 then return 0 end
  return (is_paused() or held_for() > 0) and 1 or 0
end

-- The limits in this order, as `naturals` returns them. (Not a table of names: every script would make that.)
local function read_limits()
  return naturals(CONTROL, 'held', 'held_for', 'count', 'per', 'burst', 'concurrency')
end

-- Returns: nil | the answer that says that another program has damaged the limits
local function damaged_limits()
  local _, wrong = read_limits()
  return wrong
end

-- How many messages may be handed out now. It forgets a hold that has ended, so call it where a step may write.
-- flying: how many are in flight; nil where that does not matter
-- Returns: nil, where nothing limits the queue | {most, after = milliseconds until one more may be, nil where one has to
--          be settled first; next and interval: for `spend`}
local function allowance(flying)
  local held, longest, count, per, burst, concurrency = unpack(read_limits() or {}, 1, 6)
  local most, after, last, interval = math.huge, nil, nil, nil
  if (count or 0) > 0 and (per or 0) > 0 then
    -- Without a burst that was said, no window of that length has more than `count`.
    local size = burst or math.max(1, math.floor(count / 50))
    interval = per / (burst and count or count - size + 1)
    local time, text = call('TIME'), call('HGET', CONTROL, 'next')
    time = time[1] * 1000 + time[2] / 1000
    local furthest = time + size * interval
    last = text and #text < 30 and string.find(text, '^%d+%.%d+$') and tonumber(text) or 0
    if last > furthest then call('HSET', CONTROL, 'next', string.format('%.3f', furthest)) end  -- the clock was set back
    last = math.min(math.max(last, time), furthest)
    most = math.floor((furthest - last) / interval + 0.000001)
    if most < 1 then after = math.ceil(last + interval - furthest) end
  end
  if held then
    local left = math.min(held - now(), longest or 0)
    if left <= 0 then
      call('HDEL', CONTROL, 'held', 'held_for')
    else
      if held - now() > left then call('HSET', CONTROL, 'held', now() + left) end  -- the clock was set back
      most, after = 0, math.max(after or 0, left)
    end
  end
  if concurrency and flying and concurrency - flying < most then
    most = math.max(0, concurrency - flying)
    if most == 0 then after = nil end
  end
  if most == math.huge then return nil end
  return {most = most, after = after, next = last, interval = interval, concurrency = concurrency}
end

-- So many messages were handed out under this allowance.
local function spend(allowed, messages)
  if allowed and allowed.interval and messages > 0 then
    call('HSET', CONTROL, 'next', string.format('%.3f', allowed.next + messages * allowed.interval))
  end
end

-- Is there a limit of how many are in flight? Then one that is settled makes room for another.
local function limits_flight()
  return call('HEXISTS', CONTROL, 'concurrency') == 1
end

-- Change limits: names and values in ARGV from first on. '' removes one. `held` is milliseconds from now: 0 ends a hold,
-- and any other number makes it no shorter than it is.
local function set_limits(first)
  for i = first, #ARGV, 2 do
    local name, value = ARGV[i], ARGV[i + 1]
    if name == 'held' and tonumber(value) > 0 then
      if tonumber(value) > held_for() then
        call('HSET', CONTROL, 'held', now() + tonumber(value), 'held_for', value)
      end
    elseif name == 'held' then
      call('HDEL', CONTROL, 'held', 'held_for')
    elseif value == '' then
      call('HDEL', CONTROL, name)
      if name == 'count' then call('HDEL', CONTROL, 'next') end
    else
      call('HSET', CONTROL, name, value)
    end
  end
end

-- What `Limits` of Python reads: {milliseconds of a hold, count, per, burst, concurrency}, each 0 where there is none.
local function told_limits()
  local said = call('HMGET', CONTROL, 'count', 'per', 'burst', 'concurrency')
  return {held_for(), natural(said[1]) or 0, natural(said[2]) or 0, natural(said[3]) or 0, natural(said[4]) or 0}
end
