-- What the steps of a queue of events share, behind what all rooms share in `connection/lua`: names for the keys, and
-- functions.
-- KEYS: 1 unclaimed ids, 2 :claimed, 3 :items, 4 :consumers, and ours: 5 bound, 6 closed, 7 expiry, 8 attempts, 9 dead,
--       10 turns, 11 watch, 12 room, 13 putters, 14 scan, 15 end, 16 control, 17 resumed, 18 errors, 19 delayed,
--       20 later, 21 expires, 22 expired, 23 keyed, 24 lines, 25 ring, 26 op
-- An okq beside us does not keep our keys: each of them may be missing or stale at any time. What okq's own keys say
-- counts: an id in CLAIMED whose lock key exists is claimed, whoever claimed it.
-- The lock key of an event is not among KEYS, since a step learns ids from the lists. It has the same hash tag.
-- Scripts never roll back: so every script reads and checks everything before its first write.
LIST = KEYS[1]
local UNCLAIMED, CLAIMED, ITEMS, CONSUMERS = LIST, KEYS[2], KEYS[3], KEYS[4]
-- EXPIRY is the index of claims: id -> when to look at its lock. ATTEMPTS: id -> how often it was delivered before.
-- DEAD has dead letters, the newest leftmost; see `read_letter`.
local BOUND, CLOSED, EXPIRY, ATTEMPTS, DEAD = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
-- TURNS and ROOM have a token for the next client that waits for events, or for room. END has one for the client that
-- watches the queue, when the queue has ended, an event is due earlier than that client knows, or its limits may let
-- another one through. WATCH says which client that is, and PUTTERS exists while clients wait for room. SCAN says how far
-- the claims have been indexed.
TURNS, WATCH, OP = KEYS[10], KEYS[11], KEYS[26]
KEYED, LINES, RING = KEYS[23], KEYS[24], KEYS[25]
local ROOM, PUTTERS, SCAN, END = KEYS[12], KEYS[13], KEYS[14], KEYS[15]
-- CONTROL says whether the queue is paused, and its limits. RESUMED has a token when a pause has ended.
-- ERRORS: id -> 'attempt:error' of the latest attempt that ended with an error; only for ids that have ATTEMPTS.
CONTROL = KEYS[16]
local RESUMED, ERRORS = KEYS[17], KEYS[18]
-- DELAYED: ids by the time when they are due, in milliseconds. LATER: id -> contents. okq sees neither.
local DELAYED, LATER = KEYS[19], KEYS[20]
-- EXPIRES: id -> 'milliseconds:digest of the contents' of events that expire; before that, '$', the cost of the event and
-- ';', if it has one. EXPIRED counts, in its field 'count', those that have expired: dead letters that were never delivered
-- in time.
local EXPIRES, EXPIRED = KEYS[21], KEYS[22]

WATCH_MS = 6000                -- a client that waits tries again every 5 seconds
local SCAN_MS = 10000          -- claims are looked through at least this often
local SCAN_PAUSE_MS = 500      -- and at most this often, while the index and the claims do not agree
local STALE_S = 30             -- a consumer without a sign of life for this long is dead
local INDEX_MS = 3600000       -- an index that nobody needs goes by itself; it can be made again at any time
local ATTEMPTS_MS = 2592000000 -- 30 days: an okq that empties a queue does not forget attempts
local MOST_ERRORS = 10000      -- errors of events that came back; one that is too many replaces another one
local MOST_DUE = 100           -- how many delayed events a step has wait
local MOST_PASSED = 1000000    -- how many elements of a list a step passes while it looks for some: some 30 ms

-- Check that the keys that a step works with are of their types: these commands raise an error where they are not.
local function check_types()
  call('LLEN', UNCLAIMED)
  call('LLEN', CLAIMED)
  call('HLEN', ITEMS)
  call('ZCARD', EXPIRY)
  call('HLEN', ATTEMPTS)
  call('LLEN', TURNS)
  call('LLEN', ROOM)
  call('LLEN', CLOSED)
  call('LLEN', DEAD)
  call('ZCARD', DELAYED)
  call('HLEN', LATER)
  call('HLEN', EXPIRES)
  check_lines_types()
end

-- Check the state of the queue.
-- expected: the caller knows that the queue was created.
-- Returns: the bound (0: none), true if the queue was created | nil, an answer that says what is wrong
local function state(expected)
  local bound, created = bound_in(BOUND, call('GET', BOUND), expected)
  if bound and created then check_types() end
  return bound, created
end

local function is_closed()
  return call('EXISTS', CLOSED) == 1
end

-- Redis checks maxmemory only at the first write of a script. Consumers make room and must work on a full server: this
-- write changes nothing, and is never refused.
local function ignore_memory_limit()
  call('LREM', CLOSED, 0, '')
end

local LOCK = UNCLAIMED .. ':lock:'
local function lock_of(id)
  return LOCK .. id
end

-- Switch to the queue whose keys begin at KEYS[first], without OP: from then on, all names and functions refer to it,
-- except OP, which is the record of the step.
local function switch_to(first)
  local i = first - 1
  LIST, UNCLAIMED, CLAIMED, ITEMS, CONSUMERS = KEYS[i + 1], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3], KEYS[i + 4]
  BOUND, CLOSED, EXPIRY, ATTEMPTS, DEAD = KEYS[i + 5], KEYS[i + 6], KEYS[i + 7], KEYS[i + 8], KEYS[i + 9]
  TURNS, WATCH, ROOM, PUTTERS, SCAN = KEYS[i + 10], KEYS[i + 11], KEYS[i + 12], KEYS[i + 13], KEYS[i + 14]
  END, CONTROL, RESUMED, ERRORS = KEYS[i + 15], KEYS[i + 16], KEYS[i + 17], KEYS[i + 18]
  DELAYED, LATER, EXPIRES, EXPIRED = KEYS[i + 19], KEYS[i + 20], KEYS[i + 21], KEYS[i + 22]
  KEYED, LINES, RING, numbered = KEYS[i + 23], KEYS[i + 24], KEYS[i + 25], nil
  LOCK = UNCLAIMED .. ':lock:'
end

-- Tell those who listen to okq's channel. A user without the right to publish fails here: publish before the write.
local function publish(ids)
  for i = 1, #ids do call('PUBLISH', UNCLAIMED, ids[i]) end
end

-- How many events count towards the bound.
local function occupied()
  return call('LLEN', UNCLAIMED) + call('ZCARD', DELAYED) + call('ZCARD', LINES)
end

-- Is there an event with this id, which waits, is in flight or is delayed?
local function is_known(id)
  return call('HEXISTS', ITEMS, id) == 1 or call('HEXISTS', LATER, id) == 1
end

-- Wake a client that waits for room, if there is room and somebody waits. (Each one that puts wakes the next one.)
local function wake_putters(bound)
  if call('EXISTS', PUTTERS) == 1 and (bound == 0 or occupied() < bound) then wake(ROOM) end
end

-- The values of the locks of claims, from ARGV[first] on; false for a lock that has expired.
-- width: how many arguments a claim has; the first one is its id.
local function holders_from(first, width)
  local locks, holders = {}, {}
  for i = first, #ARGV, width do locks[#locks + 1] = lock_of(ARGV[i]) end
  for i = 1, #locks, CHUNK do
    local some = call('MGET', unpack(locks, i, math.min(i + CHUNK - 1, #locks)))
    for j = 1, #some do holders[i + j - 1] = some[j] end
  end
  return holders
end

-- Lock an event that was popped. Its lock may have been left behind. But if it is claimed, its id was in the list twice.
-- Returns: whether the event is now the caller's
local function claim(id, token, lease)
  local lock = lock_of(id)
  local free
  if lease > 0 then
    free = call('SET', lock, token, 'PX', lease, 'NX')
  else
    free = call('EXISTS', lock) == 0
  end
  if free then return true end
  if call('LPOS', CLAIMED, id) then return false end
  if lease > 0 then call('SET', lock, token, 'PX', lease) end
  return true
end

-- How many errors are kept; false where another program wrote there.
local function error_count()
  local kept = redis.pcall('HLEN', ERRORS)
  return type(kept) == 'number' and kept
end

-- fakeredis has no digests: there, the length and the beginning of the contents stand for them.
local function digest_of(contents)
  return redis.sha1hex and redis.sha1hex(contents) or #contents .. string.sub(contents, 1, 40)
end

-- The part of what EXPIRES has of an event, or false, that says its cost; or ''.
local function shown_cost(entry)
  return string.match(entry or '', '^%$%d+;') or ''
end

-- What an event costs, by that part.
local function cost_of(shown)
  return natural(string.sub(shown, 2, -2)) or 1
end

-- Has an event expired? An okq that settles an event leaves its entry: so that counts for the same contents only.
-- entry: what EXPIRES has
local function has_expired(entry, contents)
  local at, digest = string.match(entry, '^(%d+):(.*)$', #shown_cost(entry) + 1)
  return natural(at) and natural(at) <= now() and digest == digest_of(contents)
end

-- The entry in EXPIRES of an event with a cost, '' for none, that expires then, nil for never; nil where it needs none.
local function entry_of(cost, expires, contents)
  if cost == '' and not expires then return nil end
  return (cost ~= '' and '$' .. cost .. ';' or '') .. (expires and expires .. ':' .. digest_of(contents) or '')
end

-- Forget the keys of events, how often they were delivered, why that failed, and when they expire.
local function forget_attempts(ids)
  leave_lines(ids)
  if call('EXISTS', EXPIRES) == 1 then push('HDEL', EXPIRES, ids) end
  if call('EXISTS', ATTEMPTS) == 0 then return end
  push('HDEL', ATTEMPTS, ids)
  if (error_count() or 0) > 0 then push('HDEL', ERRORS, ids) end
end

-- Attempts and errors are forgotten 30 days after the last one, and not before the last delayed event is due.
local function let_expire(key)
  local last = call('ZRANGE', DELAYED, -1, -1, 'WITHSCORES')[2]
  call('PEXPIRE', key, string.format('%.0f', math.max(0, (tonumber(last) or 0) - now()) + ATTEMPTS_MS))
end

-- Keep why events have failed that just went back: {id -> error}.
local function keep_errors(errors)
  local kept = error_count()
  for id, text in pairs(kept and errors or {}) do
    if kept >= MOST_ERRORS and call('HEXISTS', ERRORS, id) == 0 then
      call('HDEL', ERRORS, call('HSCAN', ERRORS, 0, 'COUNT', 1)[2][1] or '')
    end
    local attempt = call('HGET', ATTEMPTS, id)
    if attempt then kept = kept + call('HSET', ERRORS, id, attempt .. ':' .. text) end
  end
  if kept then let_expire(ERRORS) end
end

-- The latest error of an event that was delivered so often.
-- Returns: which attempt that was, the error; 0 and '' where none is known
local function error_of(id, attempts)
  local kept = error_count() and call('HGET', ERRORS, id) or ''
  local attempt, text = string.match(kept, '^(%d+):(.*)$')
  attempt = natural(attempt)
  if not attempt or attempt > attempts then return 0, '' end
  return attempt, text
end

-- A dead letter: '#' and the packed key, if it has one; '+', the packed id, the packed reason
-- 'time:attempts:attempt:error' (attempt 0 and no error: none is known), and the contents. Older versions wrote the packed id and the contents.
-- expired: that is why it is one
local function letter_of(id, contents, attempts, expired)
  local key = string.match(call('HGET', KEYED, 'i' .. id) or '', '^a(.+)$')
  key = key and '#' .. pack(key) or ''
  if expired then
    return key .. '+' .. pack(id) .. pack(now() .. ':' .. attempts .. ':' .. attempts .. ':expired\t') .. contents
  end
  local attempt, text = error_of(id, attempts)
  return key .. '+' .. pack(id) .. pack(now() .. ':' .. attempts .. ':' .. attempt .. ':' .. text) .. contents
end

-- Returns: the id of the event in a dead letter | where its contents begin; nil where it cannot be read | its key, or nil
local function read_letter(letter)
  local key, begin = nil, 1
  if string.sub(letter, 1, 1) == '#' then key, begin = unpack_text(letter, 2) end
  if not begin then return nil end
  local explained = string.sub(letter, begin, begin) == '+'
  local id, from = unpack_text(letter, begin + (explained and 1 or 0))
  local reason
  if id and explained then
    reason, from = unpack_text(letter, from)
    if not reason then return nil end
  end
  return id, from, key
end

-- Forget everything that is kept for ids beside their contents.
local function forget(ids)
  push('ZREM', EXPIRY, ids)
  forget_attempts(ids)
  local locks = {}
  for i = 1, #ids do locks[i] = lock_of(ids[i]) end
  for i = 1, #locks, CHUNK do call('DEL', unpack(locks, i, math.min(i + CHUNK - 1, #locks))) end
end

-- Put events that are no longer in CLAIMED back on the right end, the first of them rightmost, so that it comes first.
-- counted: a function that says whether this delivery counts as an attempt
local function put_back(ids, counted)
  if #ids == 0 then return end
  publish(ids)
  local back = {}
  for i = #ids, 1, -1 do
    back[#back + 1] = ids[i]
    if counted(ids[i]) then call('HINCRBY', ATTEMPTS, ids[i], 1) end
  end
  let_expire(ATTEMPTS)
  push('RPUSH', UNCLAIMED, back)
  if is_closed() then wake(TURNS) end  -- those that wait for the end look for a token only
end

local function always()
  return true
end

-- Keep events for later, and tell those that wait for events when the first one is due.
-- scores: when each is due, and its id | contents: id, contents, and so on
local function delay(scores, contents)
  push('HSET', LATER, contents)
  push('ZADD', DELAYED, scores)
  local first = tonumber(call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')[2])
  for i = 1, #scores, 2 do
    if scores[i] <= first then
      if is_closed() then wake(TURNS) elseif call('EXISTS', WATCH) == 1 then wake(END) end
      return
    end
  end
end

-- Keep events for later that are no longer in CLAIMED: that was an attempt.
-- dues: {id -> when it is due}
local function put_off(ids, dues)
  if #ids == 0 then return end
  local contents, scores, pairs_ = call('HMGET', ITEMS, unpack(ids)), {}, {}
  for i = 1, #ids do
    scores[2 * i - 1], scores[2 * i] = dues[ids[i]], ids[i]
    pairs_[2 * i - 1], pairs_[2 * i] = ids[i], contents[i]
    call('HINCRBY', ATTEMPTS, ids[i], 1)
  end
  delay(scores, pairs_)
  let_expire(ATTEMPTS)
  push('HDEL', ITEMS, ids)
end

-- Have delayed events wait that are due, at the end of the line, at most 100 in a step.
local function promote()
  local ids = call('ZRANGEBYSCORE', DELAYED, '-inf', now(), 'LIMIT', 0, MOST_DUE)
  if #ids == 0 then return end
  local contents, taken = call('HMGET', LATER, unpack(ids)), call('HMGET', ITEMS, unpack(ids))
  local due, pairs_, again = {}, {}, {}
  for i = 1, #ids do
    if taken[i] then  -- okq has put another event with this id: this one waits until that is gone
      again[#again + 1], again[#again + 2] = now() + 1000, ids[i]
    elseif contents[i] then
      due[#due + 1] = ids[i]
      pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = ids[i], contents[i]
    end
  end
  publish(due)
  push('HSET', ITEMS, pairs_)
  push('LPUSH', UNCLAIMED, due)
  push('HDEL', LATER, due)
  call('ZREM', DELAYED, unpack(ids))
  push('ZADD', DELAYED, again)
  if is_closed() then wake(TURNS) end  -- those that wait for the end look for a token only
end

-- Note in the index when to look at claims: scores and ids.
local function index(claims)
  push('ZADD', EXPIRY, claims)
  call('PEXPIRE', EXPIRY, INDEX_MS)
end

-- Index claims that another program made, or whose entry got lost: at most 1,000 a pass.
-- A claim without a lock may be one that okq is about to lock: it is looked at again after a second.
local function index_claims(claims)
  local left = call('PTTL', SCAN)
  if left > SCAN_MS - SCAN_PAUSE_MS or (left > 0 and call('ZCARD', EXPIRY) == claims) then return end
  local from = natural(call('GET', SCAN)) or 0
  if from >= claims then from = 0 end
  local ids = call('LRANGE', CLAIMED, from, from + CHUNK - 1)
  local scores = call('ZMSCORE', EXPIRY, unpack(ids))
  local found = {}
  for i = 1, #ids do
    if not scores[i] then
      local lasts = call('PTTL', lock_of(ids[i]))
      if lasts == -1 then lasts = SCAN_MS elseif lasts < 0 then lasts = 1000 end
      found[#found + 1], found[#found + 2] = now() + lasts, ids[i]
    end
  end
  index(found)
  call('SET', SCAN, from + CHUNK, 'PX', SCAN_MS)
end

-- Have an event wait whose turn has come, if none does.
local function show_next()
  local id = restock()
  if not id then return end
  redis.pcall('PUBLISH', UNCLAIMED, id)
  if is_closed() then wake(TURNS) end  -- those that wait for the end look for a token only
end

-- Free what okq has settled, and show what may be handed out.
local function tend_lines()
  if call('EXISTS', LINES) == 0 then return end
  check_lines(is_known)
  show_next()
end

-- The keys of events, for `line_up`: of the last ones, as many as have a MiB of contents together.
local function keys_of(ids, states, steps, last)
  local keys, bytes, some, first = {}, 0, nil, last + 1
  for i = last, 1, -1 do
    local letter, contents = string.sub(states[i] or '', 1, 1), nil
    if steps and letter == '' then
      if i < first then
        first = math.max(1, i - 19)
        some = call('HMGET', ITEMS, unpack(ids, first, i))
      end
      contents = some[i - first + 1]
      bytes = bytes + #(contents or '')
      if bytes > 1048576 and i < last then break end
    end
    keys[i] = letter == 'w' and string.sub(states[i], 2) or contents and key_at(steps, contents) or ''
  end
  return keys
end

-- Have delayed events wait that are due, and put back events whose claims have expired, at most 1,000 in a step.
-- Returns: how many were put back
local function heal()
  promote()
  local claims = call('LLEN', CLAIMED)
  if claims == 0 then
    if call('EXISTS', EXPIRY, SCAN) > 0 then call('DEL', EXPIRY, SCAN) end
    if call('EXISTS', ITEMS, LATER) == 0 and call('EXISTS', ATTEMPTS, EXPIRES, KEYED, LINES, RING) > 0 then
      call('DEL', ATTEMPTS, ERRORS, EXPIRES, KEYED, LINES, RING)
    end
    tend_lines()
    return 0
  end
  index_claims(claims)
  local due = call('ZRANGEBYSCORE', EXPIRY, '-inf', now(), 'LIMIT', 0, CHUNK)
  local back, gone = {}, {}
  for i = 1, #due do
    local id = due[i]
    local lasts = call('PTTL', lock_of(id))
    if lasts > 0 or lasts == -1 then
      call('ZADD', EXPIRY, now() + (lasts > 0 and lasts or SCAN_MS), id)
    else
      gone[#gone + 1] = id
      -- Contents that are gone were acknowledged, or flushed.
      if call('LREM', CLAIMED, 0, id) > 0 and call('HEXISTS', ITEMS, id) == 1 then back[#back + 1] = id end
    end
  end
  push('ZREM', EXPIRY, gone)
  put_back(back, always)
  tend_lines()
  return #back
end

-- Milliseconds after which a claim may have expired; -1 where nothing is claimed.
local function expiry()
  local claims = call('LLEN', CLAIMED)
  if claims == 0 then return -1 end
  local first = call('ZRANGE', EXPIRY, 0, 0, 'WITHSCORES')
  local left = first[2] and tonumber(first[2]) - now() or SCAN_MS
  left = math.min(left, call('ZCARD', EXPIRY) == claims and SCAN_MS or SCAN_PAUSE_MS)
  return math.max(1, math.ceil(left))
end

-- Milliseconds after which the first delayed event is due, 0 if it is overdue; -1 where there is none.
local function next_due()
  local first = call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')
  return first[2] and math.max(0, math.ceil(tonumber(first[2]) - now())) or -1
end

-- Milliseconds after which it is worth another look: a claim may have expired, or an event is due; -1 if neither.
local function due()
  local left, delayed = expiry(), next_due()
  if left < 0 or delayed >= 0 and delayed < left then left = delayed end
  return left
end

-- Check that the queue takes events.
-- back: they were popped before, so its end does not matter
-- Returns: the bound | nil, the answer that says why it takes none
local function open_to_puts(expected, back)
  local bound, created = state(expected)
  if bound and (back or not is_closed()) then
    if not created then check_types() end
    return bound
  end
  if not bound and created[1] == 'corrupt' then return nil, created end
  wake(ROOM)  -- the next one that waits for room has to learn that, too
  return nil, bound and {'closed'} or created
end

-- Which of some events a queue with so much room takes, in order.
-- first, last: where they are in ARGV | width: how many arguments each has; the first two are its id and its contents
-- replacing: gets the places of events that replace another one, whose last argument begins with '='; nil if none does
-- Returns: a letter for each that was looked at, as push.lua answers | the places of those that it takes in ARGV | their
--          ids | their ids and contents
local function accepted(first, last, width, room, replacing)
  local letters, places, ids, pairs_, seen = {}, {}, {}, {}, {}
  for i = first, last, width do
    local id = ARGV[i]
    if replacing and string.sub(ARGV[i + width - 1], 1, 1) == '=' then
      letters[#letters + 1], replacing[#replacing + 1] = 'k', i
    elseif seen[id] or is_known(id) then
      letters[#letters + 1] = 'd'
    elseif #ids < room then
      letters[#letters + 1] = 'k'
      seen[id] = true
      places[#places + 1], ids[#ids + 1] = i, id
      pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = id, ARGV[i + 1]
    else
      call('SET', PUTTERS, 1, 'PX', WATCH_MS)
      break
    end
  end
  return letters, places, ids, pairs_
end

-- The answer of a step that has put events, as `accepted` says.
local function answer_put(letters, bound)
  letters = table.concat(letters)
  if letters ~= '' then record(ARGV[1], letters) end
  wake_putters(bound)
  return {'pushed', letters}
end

-- Everything that waits here must learn that the queue has ended: each client that does wakes the next one.
local function tell_all()
  wake(TURNS)
  wake(ROOM)
  wake(END)
end

-- The limits of the queue may let another event through, or keep none any more: the client that watches it tries again.
-- So do those that listen to okq's channel; a user without the right to publish does without them.
local function wake_limited()
  if call('EXISTS', WATCH) == 1 then wake(END) end
  local first = call('LRANGE', UNCLAIMED, -1, -1)[1]
  if first then redis.pcall('PUBLISH', UNCLAIMED, first) end
end
