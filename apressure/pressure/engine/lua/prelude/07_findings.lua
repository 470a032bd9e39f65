-- Find entries that other programs wrote, among the first thousand of APART, of REDELIVERED and of DELAYED.
-- Returns: the fields of APART that are no deliveries, the entries of REDELIVERED that are invalid, its valid entries,
--          the entries of DELAYED that are not ours
local function foreign()
  local fields, entries, proper, later = {}, {}, {}, {}
  if call('TYPE', APART).ok == 'hash' then
    local all = call('HKEYS', APART)
    for i = 1, math.min(#all, CHUNK) do
      local _, _, odd = look_apart(all[i])
      if odd or not natural(all[i]) then fields[#fields + 1] = all[i] end
    end
  end
  if call('TYPE', REDELIVERED).ok == 'list' then
    for _, entry in ipairs(call('LRANGE', REDELIVERED, -CHUNK, -1)) do
      local to = redelivery(entry) and proper or entries
      to[#to + 1] = entry
    end
  end
  if call('TYPE', DELAYED).ok == 'zset' then
    for _, entry in ipairs(call('ZRANGE', DELAYED, 0, CHUNK - 1)) do
      local _, _, odd = look_later(entry)
      if odd then later[#later + 1] = entry end
    end
  end
  return fields, entries, proper, later
end

-- The state of a key, whatever its type: {type, size, the beginning of a string or the token of a lease}.
local function state_of(key)
  local kind = call('TYPE', key).ok
  if kind == 'string' then return {kind, call('STRLEN', key), call('GETRANGE', key, 0, 4095)} end
  if kind == 'list' then return {kind, call('LLEN', key), ''} end
  if kind == 'hash' then return {kind, call('HLEN', key), call('HGET', key, 'token') or ''} end
  if kind == 'zset' then return {kind, call('ZCARD', key), ''} end
  return {kind, 0, ''}
end

-- A digest of the states of keys. If two digests are equal, nothing has changed in between.
local function mark(keys)
  local all = {}
  for i = 1, #keys do
    local seen = state_of(keys[i])
    all[i] = seen[1] .. ':' .. seen[2] .. ':' .. #seen[3] .. ':' .. seen[3]
  end
  return digest_of(table.concat(all, '|'))
end

local function mark_of(role)
  return mark({KEYS[HOLDER + role], KEYS[MESSAGES + 2 * role], KEYS[BYTES + 2 * role], KEYS[FREE + role],
               KEYS[LEASE + role], KEYS[CLAIM + role]})
end

