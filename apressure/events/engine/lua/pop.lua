-- Pop events from the front, and claim them (specification: QRPOP).
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, or '2' if it stands behind a wait: then it takes nothing where this
--       client does not watch the queue any more, 3 the most events, 4 milliseconds of the lease (0: acknowledge them at
--       once), 5 token of the claims, 6 place of this client in the line or '' if it does not wait,
--       7 limit of deliveries of an event or 0, 8 '1' if the queue must have been created,
--       9 how many claims the caller has in hand, if it waits for those of others when the queue is closed, or '',
--       10 '1' to take no more than the caller's share, where several consumers are registered
-- Returns: {'events', {ids}, {contents}, {attempts}, dead letters as `told` returns them, what was known of those that
--          were acknowledged at once, as push.lua takes it back, and of others, if they have costs, what EXPIRES has; if
--          anything} (without ids: there may be more, try again) |
--          {'empty', milliseconds, 1 if the queue was created} (to one that does not wait) |
--          {'watch', milliseconds, created} (watch the queue) | {'turn', milliseconds, created} (wait in line) |
--          {'draining', milliseconds, created} (closed and empty, but others have events, or some are delayed) |
--          {'limited', milliseconds, created, those after which the limits let one more through, or -1} (events wait, and
--          the limits keep them; to one that waits: watch the queue) | {'paused', milliseconds, created} |
--          {'closed'} | {'missing'} | {'corrupt', why};
--          with the milliseconds after which it is worth another try in any case, or -1
local lease, token, place, limit = tonumber(ARGV[4]), ARGV[5], ARGV[6], tonumber(ARGV[7])

-- How many of the free places in flight this client may take, where others wait for one: a quick client would always be
-- the first that asks. The last free place is for the client that watches the queue, if this one can wait; and a consumer
-- has no more than an equal share of all places in hand.
local function fair_share(allowed)
  if not allowed.concurrency then return math.huge end
  local watch, most = watch_state(), math.huge
  local watched = watch[1] and watch[1] ~= place and (natural(watch[2]) or 0) > now()
  if watched and place ~= '' then most = math.max(0, allowed.most - 1) end
  if ARGV[9] ~= '' and (watched or (natural(watch[3]) or 0) > now()) then
    local share = math.ceil(allowed.concurrency / math.max(1, call('ZCARD', CONSUMERS))) - tonumber(ARGV[9])
    most = math.min(most, math.max(watched and 0 or 1, share))
  end
  return most
end

local before = recall(ARGV[1], ARGV[2])
if before and before ~= '' then
  -- The reply to this very step was lost: answer again with what is still claimed by it.
  local ids, contents, attempts, costs, more = {}, {}, {}, {}, false
  for _, id in ipairs(unpack_all(before)) do
    local found = call('GET', lock_of(id)) == token and call('HGET', ITEMS, id)
    if found then
      ids[#ids + 1], contents[#contents + 1] = id, found
      attempts[#attempts + 1] = (natural(call('HGET', ATTEMPTS, id)) or 0) + 1
      costs[#ids] = shown_cost(call('HGET', EXPIRES, id))
      more = more or costs[#ids] ~= ''
    end
  end
  return {'events', ids, contents, attempts, 0, more and costs or nil}
elseif before then
  return {'events', {}, {}, {}, 0}
end
if ARGV[2] == '2' then
  local watch = watch_state()
  if watch[1] ~= place or (natural(watch[2]) or 0) <= now() then return {'events', {}, {}, {}, 0} end
end
local bound, created = state(ARGV[8] == '1')
if not bound then
  if place ~= '' and created[1] == 'missing' then tell_all() end
  return created
end
if not created then check_types() end
local controlled = call('EXISTS', CONTROL) == 1
local wrong = controlled and damaged_limits()
if wrong then return wrong end
ignore_memory_limit()
heal()
if controlled and is_paused() then
  if place ~= '' then pass_on(place) end  -- all that wait shall wait for the end of the pause
  return {'paused', due(), created and 1 or 0}
end

local ids, contents, attempts, dead, dropped, looked, bytes = {}, {}, {}, {}, {}, 0, 0
local kept, more, units = {}, false, 0
local most = tonumber(ARGV[3])
local keyed = has_keys()
if most > 1 and ARGV[10] == '1' then
  local waiting = call('LLEN', UNCLAIMED) + (keyed and call('ZCARD', RING) or 0)
  most = math.min(most, math.max(1, math.ceil(waiting / math.max(1, call('ZCARD', CONSUMERS)))))
end
-- Without a lease an event is never in flight.
local allowed = controlled and allowance(lease > 0 and call('LLEN', CLAIMED) or nil)
if allowed then most = math.min(most, allowed.most, lease > 0 and fair_share(allowed) or math.huge) end
local tried, expiring = call('EXISTS', ATTEMPTS) == 1, call('EXISTS', EXPIRES) == 1
if expiring then call('HLEN', EXPIRED) end  -- an error where it is of the wrong type: before anything is taken
local reach, sorted, gone = 2 * CHUNK, false, {}
if keyed and most > 0 then reach, sorted = line_up(most, keys_of) end
while #ids < most and looked < reach and bytes < 1048576 do
  -- A few at a time, since some may be large.
  local some = call('LRANGE', UNCLAIMED, -math.min(most - #ids, reach - looked, 100), -1)
  if #some == 0 then break end
  local found = call('HMGET', ITEMS, unpack(some))
  local times = tried and call('HMGET', ATTEMPTS, unpack(some)) or {}
  local ends = expiring and call('HMGET', EXPIRES, unpack(some)) or {}
  local taken = 0
  for i = #some, 1, -1 do
    if #ids > 0 and bytes + #(found[i] or '') > 1048576 then
      bytes = 1048576
      break
    end
    if allowed and units >= allowed.units then break end
    taken = taken + 1
    local attempt = (natural(times[i] or nil) or 0) + 1
    if not found[i] then
      -- An id without contents: it was acknowledged, or flushed, and okq died in between.
      gone[#gone + 1] = some[i]
    elseif ends[i] and has_expired(ends[i], found[i]) then
      call('HINCRBY', EXPIRED, 'count', 1)
      if asker_of(some[i]) then
        dropped[#dropped + 1] = some[i]  -- who asked waits no more
      else
        dead[#dead + 1] = {some[i], found[i], attempt - 1, true}
      end
    elseif limit > 0 and attempt > limit then
      dead[#dead + 1] = {some[i], found[i], attempt - 1}
    elseif claim(some[i], token, lease) then
      ids[#ids + 1], contents[#contents + 1], attempts[#attempts + 1] = some[i], found[i], attempt
      local cost = shown_cost(ends[i])
      if lease == 0 and (expiring or keyed) then
        local state = keyed and call('HGET', KEYED, 'i' .. some[i])
        kept[#ids] = (state and '#' .. pack(string.sub(state, 2)) or '') .. (ends[i] or '')
      else
        kept[#ids] = cost
      end
      more = more or kept[#ids] ~= ''
      units = units + cost_of(cost)
      bytes = bytes + #found[i]
    end
  end
  looked = looked + taken
  call('LTRIM', UNCLAIMED, 0, -taken - 1)
  if taken < #some then break end
end
for i = 1, #dead do
  call('LPUSH', DEAD, letter_of(unpack(dead[i])))
  call('HDEL', ITEMS, dead[i][1])
  local id, _, attempt = unpack(dead[i])
  if asker_of(id) then reply({id}, 'd' .. select(2, error_of(id, attempt))) end
  forget({id})
end
push('HDEL', ITEMS, dropped)
forget(dropped)
if #ids > 0 and lease > 0 then
  local packed, scores = {}, {}
  for i = 1, #ids do
    packed[i] = pack(ids[i])
    -- A fraction keeps the order of events that were claimed together.
    scores[2 * i - 1], scores[2 * i] = now() + lease + 0.0003 * i, ids[i]
  end
  push('LPUSH', CLAIMED, ids)
  index(scores)
  record(ARGV[1], table.concat(packed))
elseif #ids > 0 then
  push('HDEL', ITEMS, ids)
  forget(ids)
end
leave_lines(gone)
show_next()
spend(allowed, units)
if looked > 0 or sorted then
  wake_putters(bound)
  if place ~= '' then pass_on(place) end
  -- One that watches since the limits kept events waits for new ones now.
  if controlled and call('LLEN', UNCLAIMED) == 0 and limits_flight() then wake_limited() end
  return {'events', ids, contents, attempts, told(dead), more and kept or nil}
end
local again = due()
if allowed and call('LLEN', UNCLAIMED) > 0 then
  local left, after = place ~= '' and watched_by_another(place), allowed.after or -1
  if left then return {'turn', left, created and 1 or 0} end
  if place ~= '' then call('DEL', END) end  -- this step knows all that it tells
  if after >= 0 and (again < 0 or after < again) then again = after end
  return {'limited', again, created and 1 or 0, after}
end
if is_closed() then
  local others = ARGV[9] ~= '' and call('LLEN', CLAIMED) > tonumber(ARGV[9])
  if others or call('EXISTS', DELAYED) == 1 or call('ZCARD', LINES) > 0 then return {'draining', again, 1} end
  if place ~= '' then tell_all() end
  return {'closed'}
end
created = created and 1 or 0
if place == '' then return {'empty', again, created} end
local left = watched_by_another(place)
if left then return {'turn', left, created} end
return {'watch', again, created}
