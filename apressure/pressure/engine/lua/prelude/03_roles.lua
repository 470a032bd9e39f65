local function count(role, messages, bytes)
  call('INCRBY', KEYS[MESSAGES + 2 * role], messages)
  call('INCRBY', KEYS[BYTES + 2 * role], bytes)
end

local function release(role)
  if call('LPUSH', KEYS[FREE + role], 1) > 1 then call('LTRIM', KEYS[FREE + role], 0, 0) end
end

-- Is the role's token missing? Then a client that works step by step has it, or died with it.
local function hidden(role)
  return call('EXISTS', KEYS[FREE + role], KEYS[CLAIM + role], KEYS[LEASE + role]) == 0
end

-- Make :not_full hold one token while there is room, and none otherwise. A bound below 0 is no bound.
-- A missing token may be with a client that works step by step: a producer holds it while it puts, and a consumer
-- brings it after it took a message. A second token would let a put exceed the bound. So while a role is hidden, only a
-- step that took messages adds one.
-- Delayed messages take no permit, since other clients do not see them, and would wait for ever: our puts count them.
-- length, permits: the lengths of the two lists, where the step knows them.
-- took: this step took messages, or a token is due for another reason.
local function normalise(bound, length, permits, took)
  permits = permits or call('LLEN', NOT_FULL)
  if bound > 0 then
    local later = delayed()
    if later > 0 and (length or call('LLEN', LIST)) + later < bound then wake(ROOM) end
  end
  if bound <= 0 or (length or call('LLEN', LIST)) < bound then
    if permits > 1 then
      call('LTRIM', NOT_FULL, 0, 0)
    elseif permits == 0 and (took or bound <= 0 or not (hidden(PRODUCER) or hidden(CONSUMER))) then
      call('LPUSH', NOT_FULL, 1)
    end
  elseif permits > 0 then
    call('DEL', NOT_FULL)
  end
end

-- How many messages may be put; delayed ones take places. While a consumer that works step by step owes a token for a
-- message that it took, one place belongs to the client that will get that token.
-- length, permits: as above; permits may be nil.
-- lost: nobody waits for that token any longer.
local function places(bound, length, permits, lost)
  local free = math.max(0, bound - length - delayed())
  if free > 0 and not lost and (permits or call('LLEN', NOT_FULL)) == 0 and hidden(CONSUMER) then return free - 1 end
  return free
end

-- There is room, and not for our put. Returns: {'full'} (a client is about to bring the permit) |
--          {'room'} (delayed messages take all the room: wait for that at ROOM)
local function await_room(bound, length, permits)
  if length + delayed() < bound then return {'full'} end
  call('DEL', ROOM)
  normalise(bound, length, permits)
  return {'room'}
end

