-- How long a role's lease still lasts: at most its duration, since the server's clock may have been set back.
-- Returns: milliseconds (0 or less: it has expired), true if its deadline is further away than its duration |
--          nil if it has no readable deadline
local function lasts(role)
  local lease = call('HMGET', KEYS[LEASE + role], 'deadline', 'duration')
  local deadline = natural(lease[1])
  if not deadline then return nil end
  local left, longest = deadline - now(), natural(lease[2]) or LEASE_MS
  return math.min(left, longest), left > longest
end

-- Has another program overwritten the number of the next delivery? Then the lease is invalid, also for its owner.
local function unreadable(role)
  local next_number = call('HGET', KEYS[LEASE + role], 'next')
  return next_number and not natural(next_number)
end

-- Heal a role: the token of an expired lease or an abandoned claim goes back, and messages in flight without a valid
-- lease return to the queue. A lease that would last too long is shortened, not ended: its owner may be alive.
-- bound: the queue's bound; nil where the queue is gone: then messages in flight are deleted.
-- careful: the step pushes, and must not use healing to get past the memory limit.
-- ended: the lease counts as expired, whatever its deadline.
-- Returns: true if the lease was expired, number of messages that were in flight without a valid lease,
--          true if a claim was abandoned, true if the lease was too long
local function heal(role, bound, careful, ended)
  local left, overlong = lasts(role)
  local leased = left or call('EXISTS', KEYS[LEASE + role]) == 1
  local expired = leased and (ended or not left or left <= 0)
  local items, abandoned = 0, false
  if role == CONSUMER and (expired or not leased) then items = in_flight() end
  local orphaned = items > 0
  overlong = overlong and not expired
  if expired or orphaned or overlong then
    call('LLEN', REDELIVERED)
    call('LLEN', KEYS[FREE + role])
    if careful then respect_memory_limit() else ignore_memory_limit() end
  end
  if overlong then call('HSET', KEYS[LEASE + role], 'deadline', now() + left) end
  if orphaned and bound then
    return_everything()
    normalise(bound)
  elseif orphaned then
    call('DEL', INFLIGHT, APART)
  end
  if expired then
    call('DEL', KEYS[LEASE + role])
    release(role)
  end
  if call('LLEN', KEYS[CLAIM + role]) > 0 then
    local expires = natural(call('GET', KEYS[CLAIM_UNTIL + role]))
    if not expires or expires > now() + CLAIM_MS then
      -- The claim's owner cannot write this: it learns of its claim from the reply. A server that is out of memory
      -- refuses it; then the next step writes it.
      redis.pcall('SET', KEYS[CLAIM_UNTIL + role], now() + CLAIM_MS)
    elseif now() >= expires then
      abandoned = true
      if careful then respect_memory_limit() end
      call('DEL', KEYS[CLAIM + role], KEYS[CLAIM_UNTIL + role])
      release(role)
    end
  end
  return expired, items, abandoned, overlong
end

-- Look for unusual states, and heal the roles if there is one; and put what is due into the line.
-- mine: the role of this step's own lease, which must not be healed; or nil.
-- broken: a statistic cannot be used, so nothing is put.
-- Returns: 1 if the queue is closed, or 0; true if all is as usual: no claim, no pause or limit, no producer's lease,
--          nothing healed, nothing delayed; true if the consumer has a lease
local function survey(bound, careful, mine, broken)
  local left, overlong = lasts(CONSUMER)
  local leased = left ~= nil
  local fine = leased and left > 0 and not overlong
      or not leased and call('EXISTS', KEYS[LEASE + CONSUMER], INFLIGHT, APART) == 0
  local unusual = call('EXISTS', CLOSED, CONTROL, KEYS[LEASE + PRODUCER], KEYS[CLAIM + PRODUCER],
                       KEYS[CLAIM + CONSUMER], DELAYED, POPPED)
  if unusual == 0 and fine then return 0, true, leased end
  if fine and unusual == call('EXISTS', DELAYED, POPPED, CONTROL) then  -- nothing else is unusual
    if bound and not broken and delayed() > 0 then promote(bound, careful) end
    return 0, false, leased
  end
  if mine ~= PRODUCER then heal(PRODUCER, bound, careful) end
  if mine ~= CONSUMER then heal(CONSUMER, bound, careful) end
  if bound and not broken and delayed() > 0 then promote(bound, careful) end
  return call('EXISTS', CLOSED), false, leased
end

-- Deliveries were settled: where there is a limit of how many are in flight, wake the client that waits for that. If
-- somebody has emptied the queue meanwhile, it waits for messages then.
local function wake_limited()
  if limits_flight() then wake(SOONER) end
end

-- The same; returns whether clients of ours are to give back what they have not handed out yet.
local function heed_control(settled)
  if call('EXISTS', CONTROL) == 0 then return false end
  if settled > 0 then wake_limited() end
  return is_halted() == 1
end

-- The answer to a step that the limits of the queue keep from messages which wait. The client that watches the queue is
-- the one that waits for its limits, too.
-- place: as in get.lua; nil where only this client can wait | again: milliseconds after which to try in any case, or -1
-- closed: 1 if the queue is closed, or 0. Then the answer ends with 1: the client must not wait for that, too.
local function limited(allowed, place, again, closed)
  local ended = closed == 1 and 1 or nil
  if place and place ~= '' then
    local left = watched_by_another(place)
    if left then return {'turn', again < 0 and left or math.min(again, left), -1, ended} end
  end
  if place ~= '' then call('DEL', SOONER) end
  return {'limited', again, allowed.after or -1, ended}
end

-- Move a token that this client has claimed to the free list. After the step, the first client in line gets it.
local function unclaim(role, claimed)
  if claimed == '1' and call('LLEN', KEYS[CLAIM + role]) > 0 then
    call('DEL', KEYS[CLAIM + role], KEYS[CLAIM_UNTIL + role])
    release(role)
  end
end

-- May this step work in the role? Returns: true | nil, the answer that says why not
-- A step without a lease does not move the token: no other client can run a command during a script.
-- unleased: the step knows from `survey` that the role has no lease. (In a usual state the producer has none.)
local function enter(role, claimed, token, unleased)
  local lease = unleased and {} or call('HMGET', KEYS[LEASE + role], 'token', 'uid')
  if lease[1] then
    if lease[1] == token then return true end
    if token ~= '' then return nil, {'lost'} end
    return nil, {'busy', name_of(role), lease[2] or '', math.max(0, lasts(role) or 0)}
  end
  if token ~= '' then return nil, {'lost'} end
  if call('LLEN', KEYS[FREE + role]) > 0 then return true end
  if claimed == '1' and call('LLEN', KEYS[CLAIM + role]) > 0 then return true end
  return nil, {'busy', name_of(role), call('GET', KEYS[HOLDER + role]) or '', -1}
end

-- Refuse a step: returns `wrong`. If the queue is gone, this also ends this client's lease, and heals what dead clients
-- left, so that the client that deletes the queue can finish.
local function refuse(wrong, role, claimed, token, bound)
  if bound then
    survey(bound, true, nil, true)  -- even with a broken statistic, a dead client's role goes back
  elseif wrong[1] == 'missing' then
    if token ~= '' and call('HGET', KEYS[LEASE + role], 'token') == token then
      call('LLEN', KEYS[FREE + role])
      if role == CONSUMER then call('DEL', INFLIGHT, APART) end
      call('DEL', KEYS[LEASE + role])
      release(role)
    end
    survey(nil, false)
  end
  unclaim(role, claimed)
  return wrong
end

