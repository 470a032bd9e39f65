-- Note what happens to reserved tasks: they start, go on, end or go back (specification: Task Started, Task Completed
-- Successfully, Task Failed).
-- KEYS: those of the prelude
-- ARGV: 1 '1' if this repeats a step, 2 seconds for which results are kept or 0, 3... for each task: 'start', 'progress',
--       'complete', 'fail', 'nack' (counts as an attempt) or 'unseen' (does not); id; token, or '' if the released blueque
--       has reserved it; listener; the process, nothing, the result, the error, or why it goes back; the number of fields
--       that are set, too; the names and values of these
-- Returns: {'settled', a letter for each task: '1' done, '0' others have it, or it has ended, '-' there is no such task}
-- The token makes a repeat safe: a claim that has ended changes nothing, and it is known who ended it.
ignore_memory_limit()
local letters, back, ended = {}, false, 0
local i = 3
while i <= #ARGV do
  local how, id, token, node, value, count = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5]
  local first = i + 6
  i = first + 2 * tonumber(count)
  local task = TASK .. id
  local is = some_of(id, 'status', 'node', 'token', 'pid', 'attempts', 'max_attempts', 'reclaimed_node', 'returned')
  local held = is[1] == 'reserved' or is[1] == 'started'
  local mine = is[2] == node and (is[3] or '') == token
  local letter = '1'
  if not is[1] then
    letter = '-'
  elseif ARGV[1] == '1' and token ~= '' and (is[8] == token or (not held and mine)) then
    -- The reply to this very step was lost. (A write, so that a WAIT that follows waits for replicas.)
    call('HSET', task, 'updated', stamp())
  elseif not (held and mine) or (token ~= '' and reclaimed(is[7])) then
    letter = '0'
  else
    local pid = is[1] == 'started' and is[4]
    if how == 'start' then
      call('PUBLISH', task, 'started')
      if pid and pid ~= value then call('SREM', STARTED, node .. ' ' .. pid .. ' ' .. id) end
      call('SADD', STARTED, node .. ' ' .. value .. ' ' .. id)
      call('HSET', task, 'status', 'started', 'pid', value, 'updated', stamp(), unpack(ARGV, first, i - 1))
    elseif how == 'progress' then
      call('PUBLISH', task, 'progress')
      call('HSET', task, 'updated', stamp(), unpack(ARGV, first, i - 1))
    else
      if first < i then call('HSET', task, unpack(ARGV, first, i - 1)) end
      local attempts, limit = natural(is[5]) or 0, natural(is[6]) or 0
      if how == 'complete' then
        finish(id, 'complete', 'result', value, node, pid)
        ended = ended + 1
      elseif how == 'fail' or (how == 'nack' and limit > 0 and attempts >= limit) then
        finish(id, 'failed', 'error', value == '' and reason(id) or value, node, pid)
        ended = ended + 1
      else
        if how == 'unseen' and attempts > 0 then call('HSET', task, 'attempts', attempts - 1) end
        put_back(id, node, pid)
        call('HSET', task, 'returned', token)
        back = true
      end
    end
  end
  letters[#letters + 1] = letter
end
if ended > 0 then
  local ttl = tonumber(ARGV[2])
  if ttl > 0 then
    expire(COMPLETE, 'complete', tonumber(stamp()) - ttl, 2 * ended)
    expire(FAILED, 'failed', tonumber(stamp()) - ttl, 2 * ended)
  end
  -- Those that wait for the end learn that it may have come.
  back = back or call('EXISTS', CLOSED) == 1
end
if back then tell() end
return {'settled', table.concat(letters)}
