-- Note what happens to reserved tasks: they start, go on, end or go back (specification: Task Started, Task Completed
-- Successfully, Task Failed).
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 seconds for which results are kept or 0, 4... for each task: 'start',
--       'progress', 'complete', 'fail', 'nack' (counts as an attempt) or 'unseen' (does not); id; token, or '' if the
--       released blueque has reserved it; listener; the process, nothing, the result, the error, or why it goes back;
--       the number of fields that are set, too; the names and values of these
-- Returns: {'settled', a letter for each task: '1' done, '0' others have it, or it has ended, '-' there is no such task} |
--          {'corrupt', why}
local before = recall(ARGV[1], ARGV[2])
if before then return {'settled', before} end
local bound, created = state(false)
if not bound then return created end
check_types()
ignore_memory_limit()
local letters, back, ended = {}, false, 0
local i = 4
while i <= #ARGV do
  local how, id, token, node, value, count = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5]
  local first = i + 6
  i = first + 2 * tonumber(count)
  local task = TASK .. id
  local is = some_of(id, 'status', 'node', 'token', 'pid', 'attempts', 'max_attempts', 'reclaimed_node')
  local held = is[1] == 'reserved' or is[1] == 'started'
  local letter = '1'
  if not is[1] then
    letter = '-'
  elseif not (held and is[2] == node and (is[3] or '') == token and not (token ~= '' and reclaimed(is[7]))) then
    letter = '0'
  else
    local pid = is[1] == 'started' and is[4]
    if first < i then call('HSET', task, unpack(ARGV, first, i - 1)) end
    if how == 'start' then
      if pid then call('SREM', STARTED, node .. ' ' .. pid .. ' ' .. id) end
      call('PUBLISH', task, 'started')
      call('SADD', STARTED, node .. ' ' .. value .. ' ' .. id)
      call('HSET', task, 'status', 'started', 'pid', value, 'updated', stamp())
    elseif how == 'progress' then
      call('PUBLISH', task, 'progress')
      call('HSET', task, 'updated', stamp())
    elseif how == 'complete' or how == 'fail' then
      release(id, node, pid)
      finish(id, how == 'fail' and 'failed' or 'complete', how == 'fail' and 'error' or 'result', value)
      ended = ended + 1
    else
      release(id, node, pid)
      local attempts, limit = natural(is[5]) or 0, natural(is[6]) or 0
      if how == 'nack' and limit > 0 and attempts >= limit then
        call('HDEL', task, 'token')
        finish(id, 'failed', 'error', value == '' and reason(id) or value)
        ended = ended + 1
      else
        if how == 'unseen' and attempts > 0 then call('HSET', task, 'attempts', attempts - 1) end
        put_back(id)
        back = true
      end
    end
  end
  letters[#letters + 1] = letter
end
record(ARGV[1], table.concat(letters))
if ended > 0 and tonumber(ARGV[3]) > 0 then
  local before_time = tonumber(stamp()) - tonumber(ARGV[3])
  expire(COMPLETE, 'complete', before_time, 2 * ended)
  expire(FAILED, 'failed', before_time, 2 * ended)
end
-- Those that wait for the end learn that it may have come.
if back or (ended > 0 and call('EXISTS', CLOSED) == 1) then tell() end
return {'settled', table.concat(letters)}
