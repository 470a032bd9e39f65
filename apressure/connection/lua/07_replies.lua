-- Who waits for a reply to a message: 'apressure-ask:', 16 hexadecimal digits of this asker, ':' and a number is the id
-- of a request.
-- Returns: the digits, or nil
local function asker_of(id)
  local asker = string.match(id, '^apressure%-ask:(%x+):%d+$')
  return asker and #asker == 16 and asker or nil
end

-- Tell those who wait for a reply what has become of their requests.
-- replies: id -> a letter and what is behind it: 'b' and bytes, 'j' and JSON, 'd' (a dead letter) and the error,
--          'n' (acknowledged without a reply), 'p' (purged); or one of these for all
local function reply(ids, replies)
  for i = 1, #ids do
    local asker = asker_of(ids[i])
    local text = asker and (type(replies) == 'table' and replies[ids[i]] or replies)
    if text then
      local list = 'apressure:' .. LIST .. ':reply:' .. asker
      -- Anything may be there, and the user may lack the right: then the asker waits in vain.
      local pushed = redis.pcall('LPUSH', list, ids[i] .. ' ' .. text)
      if type(pushed) == 'number' then redis.pcall('PEXPIRE', list, 300000) end  -- what nobody reads goes by itself
    end
  end
end

