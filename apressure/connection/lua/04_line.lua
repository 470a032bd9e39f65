-- Wake clients that wait at a list: each one that takes a token there tries its step again.
-- most: how many clients; one by default.
local function wake(key, most)
  local waiting = redis.pcall('LLEN', key)
  if type(waiting) ~= 'number' then  -- another program wrote there
    call('DEL', key)
    waiting = 0
  end
  for _ = waiting + 1, most or 1 do call('LPUSH', key, 1) end
  call('PEXPIRE', key, 2 * WATCH_MS)
end

-- Wake all clients that wait at a list: for the end of a pause, or for that of the queue. It stays until those that are
-- about to wait have seen it; a pause, or a create, deletes it.
local function wake_all(key)
  call('DEL', key)  -- another program may have written there
  call('LPUSH', key, 1)
  call('PEXPIRE', key, 2 * WATCH_MS)
end

-- Of the clients that wait for something in a queue, one watches it; the others wait in line, for a token in TURNS. So
-- a put wakes one client. The client that watches passes that on when it has something to do, or no longer waits.
-- WATCH has its id, until when it certainly lives, and until when others certainly wait.

-- What WATCH says: {id, until, others}.
local function watch_state()
  local watch = redis.pcall('HMGET', WATCH, 'id', 'until', 'others')
  if watch.err then  -- another program wrote there
    call('DEL', WATCH)
    return {}
  end
  return watch
end

-- There is nothing to do: shall this client watch? Otherwise it waits in line.
-- Returns: nil if it shall | milliseconds after which the client that watches may turn out to be dead
local function watched_by_another(id)
  local watch = watch_state()
  local left = (natural(watch[2]) or 0) - now()
  local taken = watch[1] and watch[1] ~= id and left > 0 and left <= WATCH_MS
  if taken then
    call('HSET', WATCH, 'others', now() + WATCH_MS)
  else
    call('HSET', WATCH, 'id', id, 'until', now() + WATCH_MS)
  end
  call('PEXPIRE', WATCH, 2 * WATCH_MS)
  return taken and left or nil
end

-- This client has something to do, or no longer waits: if it watched, or if there is more to do, the next one wakes.
local function pass_on(id)
  local watch = watch_state()
  local mine = watch[1] == id
  if mine then call('HDEL', WATCH, 'id') end
  local left = (natural(watch[3]) or 0) - now()
  if left <= 0 or left > WATCH_MS then
    if mine then call('DEL', WATCH) end
    return
  end
  local watched = not mine and watch[1] and (natural(watch[2]) or 0) > now()
  if not watched or call('LLEN', LIST) > 0 then wake(TURNS) end
end
