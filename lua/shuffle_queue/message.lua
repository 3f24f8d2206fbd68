--@library
-- The parts of a message that are the queue's own, and the texts that stand for a message
-- elsewhere.

-- What the queue itself has written into a message, behind the user's fields: for which group it
-- is, if for one alone; the moment in ms from which on nobody wants it; what it is tracked by.
local function own_of(fields)
  local only, deadline, tracked
  for i = #fields - 1, math.max(1, #fields - 7), -2 do
    if fields[i] == 'ws:tenant' then
      break
    elseif fields[i] == 'ws:group' then
      only = fields[i + 1]
    elseif fields[i] == 'ws:deadline' then
      -- Others may have written anything; a NaN would be past.
      deadline = tonumber(string.match(fields[i + 1], '^%d+$'))
    elseif fields[i] == 'ws:tracking' then
      tracked = fields[i + 1]
    end
  end
  return only, deadline, tracked
end

-- What a message with a deadline stands as in the index: `number:entry id`, and its tracking id
-- behind a colon if it has one.
local function deadline_member(number, id, tracked)
  local place = number .. ':' .. id
  return tracked and tracked ~= '' and place .. ':' .. tracked or place
end

-- What is kept of a message that was set aside: attempts, the times in ms of its last delivery and
-- of its end, then its fields and values; each stands behind its length. Nil for what was not
-- written so.
local function parts_of(kept)
  local parts, at = {}, 1
  while at <= #kept do
    local _, last, size = string.find(kept, '^(%d+):', at)
    if not last or string.sub(kept, last + size + 1, last + size + 1) ~= ',' then
      return nil
    end
    parts[#parts + 1] = string.sub(kept, last + 1, last + size)
    at = last + size + 2
  end
  return #parts >= 3 and #parts % 2 == 1 and parts or nil
end

-- Adds pickup delays to the histogram of a group, whose buckets have powers of two as tops.
-- Arguments: the group's state; delays in ms, a text of `ms:how many`. A full server may count none
-- of them.
local function count_delays(state, delays)
  -- Most of them have the top of the one before.
  local counts, top = {}, 1
  for delay, times in string.gmatch(delays, '(%d+):(%d+)') do
    local ms = tonumber(delay)
    while top < ms do
      top = top * 2
    end
    while top > 1 and top / 2 >= ms do
      top = top / 2
    end
    counts[top] = (counts[top] or 0) + times
  end
  for top, count in pairs(counts) do
    redis.pcall('HINCRBY', state, 'delay:' .. string.format('%.0f', top), count)
  end
end
