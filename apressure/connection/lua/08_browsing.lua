-- What `browse.lua` of each room shares: a page of what is in a place of a queue. Nothing here writes.
-- page: {newest = is it the newest first, passed = how many to pass over, most = the most to return, bytes = the most
-- bytes of each}
local MOST_READ = 1048576      -- how many bytes a page reads, and one message more
local AT_A_TIME = 20           -- how many messages of unknown size are read at a time

-- A time for a page: milliseconds since 1970 as a text, or false where it is none.
local function told_time(milliseconds)
  milliseconds = tonumber(milliseconds or nil)
  return milliseconds and milliseconds >= 0 and milliseconds < 1e15 and string.format('%.0f', milliseconds) or false
end

-- total: how many there are | reach: how many of these can be shown, `total` by default
-- read: returns what is at the places from `first` to `last`, counted from 0 in the order of the page. Each is
-- {contents, 0, id, attempts, holder, since, due, key}, with times as `told_time` has them, and false for what is not
-- known
-- Returns: total, where the next page begins or -1, {the same with the beginning of the contents and their size}; fewer
--          where they are large
local function page_from(page, total, read, reach)
  local place, bytes, rows, chunk = page.passed, 0, {}, 1
  local last = math.min(reach or total, place + page.most)
  while place < last and bytes < MOST_READ do
    local some = read(place, math.min(last, place + chunk) - 1)
    for i = 1, #some do
      local contents = some[i][1]
      if contents then
        bytes = bytes + #contents
        some[i][1], some[i][2] = string.sub(contents, 1, page.bytes), #contents
      end
      rows[#rows + 1] = some[i]
    end
    if #some == 0 then break end
    place = place + #some
    chunk = math.min(2 * chunk, AT_A_TIME, math.max(1, math.floor((MOST_READ - bytes) * #rows / math.max(1, bytes))))
  end
  return total, place < (reach or total) and #rows > 0 and place or -1, rows
end

-- The elements of a list whose oldest ones are rightmost, for `page_from`.
local function listed(page, list, first, last)
  if page.newest then return call('LRANGE', list, first, last) end
  local found, some = {}, call('LRANGE', list, -last - 1, -first - 1)
  for i = #some, 1, -1 do found[#found + 1] = some[i] end
  return found
end

-- The same of a sorted set. Returns: them | their scores
local function ranked(page, set, first, last)
  local found, scores = {}, {}
  local some = page.newest and call('ZRANGE', set, first, last, 'REV', 'WITHSCORES')
      or call('ZRANGE', set, first, last, 'WITHSCORES')
  for i = 1, #some, 2 do found[#found + 1], scores[#scores + 1] = some[i], some[i + 1] end
  return found, scores
end
