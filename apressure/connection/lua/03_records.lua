local function record(sequence, result)
  call('SET', OP, sequence .. ':' .. result, 'PX', RECORD_MS)
end

-- The result of this step, if it was carried out before and its reply was lost; otherwise nil.
-- A step may also arrive after its own repeat, or after a later step, from a connection that its client has given up.
-- So a repeat leaves a record, whatever its outcome (unless there is no memory left).
-- Returns: nil | the result, a text; for a step that comes too late, so that nobody reads its answer: ''
local function recall(sequence, repeated)
  local text = call('GET', OP) or ''
  local colon = string.find(text, ':', 1, true)
  local last = colon and natural(string.sub(text, 1, colon - 1))
  local result = colon and string.sub(text, colon + 1)
  local mine = tonumber(sequence)
  local undone = last == mine and result == '' and repeated == '1'
  if not last or undone or last < mine then
    if repeated == '1' then redis.pcall('SET', OP, sequence .. ':', 'PX', RECORD_MS) end
    return nil
  end
  -- A write, so that a WAIT that follows on this new connection waits for replicas.
  call('PEXPIRE', OP, RECORD_MS)
  return last == mine and result or ''
end

-- For steps that push: a server that is out of memory refuses this write, before the step has written anything. It
-- keeps the record, which a late step may need.
local function respect_memory_limit()
  call('SET', OP, call('GET', OP) or ':', 'PX', RECORD_MS)
end
