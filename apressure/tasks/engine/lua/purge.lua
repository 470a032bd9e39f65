-- Delete tasks, the oldest or next ones first.
-- KEYS: those of the prelude
-- ARGV: 1 sequence, 2 '1' if this repeats a step, 3 'pending', 'scheduled', 'complete', 'failed' or 'held' (those that
--       nodes have), 4 how many at most, 5 for how many seconds they must not have changed, or '' for any,
--       6 '1' if the queue must have been created
-- Returns: {'purged', 'number of tasks that were deleted:number that were looked at'} | {'missing'} | {'corrupt', why}
local before = recall(ARGV[1], ARGV[2])
if before then return {'purged', before} end
local bound, created = state(ARGV[6] == '1')
if not bound then return created end
check_types()
ignore_memory_limit()
local what, most = ARGV[3], tonumber(ARGV[4])
local before_time = ARGV[5] ~= '' and tonumber(stamp()) - tonumber(ARGV[5])
local KNOWN = {scheduled = 1, pending = 1, reserved = 1, started = 1, complete = 1, failed = 1}
local lists = {pending = PENDING, complete = COMPLETE, failed = FAILED}
local ids, parked, holders, deleted, looked = {}, {}, {}, 0, 0
if what == 'scheduled' then
  ids = call('ZRANGE', SCHEDULED, 0, most - 1)
elseif what == 'held' then
  ids = call('ZRANGE', LEASES, 0, most - 1)
  local listeners = call('SMEMBERS', LISTENERS)
  for i = 1, #listeners do
    if #ids < most then
      local some = redis.pcall('LRANGE', RESERVED .. listeners[i], 0, most - 1)  -- nothing if it is no list
      for j = 1, #some do
        ids[#ids + 1] = some[j]
        holders[#ids] = listeners[i]
      end
    end
  end
else
  parked = what == 'pending' and first_parked(most) or {}
  ids = #parked > 0 and parked or call('LRANGE', lists[what], -most, -1)
end
for i = 1, #ids do
  local id = lists[what] and ids[#ids + 1 - i] or ids[i]
  local task = some_of(id, 'status', 'updated', 'node', 'pid')
  if before_time and task[1] == what and (changed_at(task[2]) or 0) > before_time then break end
  looked = looked + 1
  if what == 'held' then
    call('ZREM', LEASES, id)
    if holders[i] then call('LREM', RESERVED .. holders[i], 1, id) end  -- the task may not say who has it
    if task[3] then release(id, task[3], task[4]) end
  elseif what == 'scheduled' then
    call('ZREM', SCHEDULED, id)
  elseif #parked == 0 then
    call('RPOP', lists[what])
  end  -- `forget` takes it from its line
  -- A task with another status is in another list, too; one with an unknown status is here only.
  if not task[1] then
    forget(id)
  elseif what == 'held' or task[1] == what or not KNOWN[task[1]] then
    forget(id)
    deleted = deleted + 1
  end
end
show_next()
sweep(math.min(2 * looked, 2 * CHUNK))
record(ARGV[1], deleted .. ':' .. looked)
if (what == 'pending' or what == 'scheduled') and looked > 0 then tell_room(bound) end
return {'purged', deleted .. ':' .. looked}
