-- Who waits for a reply to a message: 'apressure-ask:', 16 hexadecimal digits of this asker, ':' and a number is the id
-- of a request.
-- Returns: the digits, or nil
local function asker_of(id)
  local asker = string.match(id, '^apressure%-ask:(%x+):%d+$')
  return asker and #asker == 16 and asker or nil
end

-- The sorted set of the requests that got no reply yet, by when their askers leave, in milliseconds.
local function asking()
  return 'apressure:' .. LIST .. ':asking'
end

-- Note that somebody waits for a reply until then. As below, anything may be there, and the user may lack the right:
-- then a deletion of the queue does not tell.
local function note_request(id, leaves)
  if not asker_of(id) then return end
  local key = asking()
  local left = redis.pcall('ZRANGEBYSCORE', key, '-inf', now(), 'LIMIT', 0, 100)
  if #left > 0 then redis.pcall('ZREM', key, unpack(left)) end
  redis.pcall('ZADD', key, string.format('%.0f', leaves), id)
  local last = redis.pcall('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  if last then redis.pcall('PEXPIRE', key, string.format('%.0f', math.max(1, last - now()))) end
end

-- Tell those who wait for a reply what has become of their requests.
-- replies: id -> a letter and what is behind it: 'b' and bytes, 'j' and JSON, 'd' (a dead letter) and the error,
--          'n' (acknowledged without a reply), 'p' (deleted); or one of these for all
local function reply(ids, replies)
  for i = 1, #ids do
    local asker = asker_of(ids[i])
    local text = asker and (type(replies) == 'table' and replies[ids[i]] or replies)
    if text then
      redis.pcall('ZREM', asking(), ids[i])
      local list = 'apressure:' .. LIST .. ':reply:' .. asker
      -- Anything may be there, and the user may lack the right: then the asker waits in vain.
      local pushed = redis.pcall('LPUSH', list, ids[i] .. ' ' .. text)
      if type(pushed) == 'number' then redis.pcall('PEXPIRE', list, 300000) end  -- what nobody reads goes by itself
    end
  end
end

-- Nothing is left in the queue: tell all who wait for a reply.
local function reply_to_all()
  local waiting = redis.pcall('ZRANGEBYSCORE', asking(), now(), '+inf')
  if not waiting.err then reply(waiting, 'p') end
  call('DEL', asking())
end
