--@library
-- The parts of a message that are the queue's own, and the texts that stand for a message
-- elsewhere.

-- Returns the queue's own parts of a message, which stand behind the user's fields: the only group that
-- it is for, if it is for one; its deadline in ms; its tracking id.
local function own_of(fields)
  local only, deadline, tracked
  for i = #fields - 1, math.max(1, #fields - 7), -2 do
    if fields[i] == 'ws:tenant' then
      break
    elseif fields[i] == 'ws:group' then
      only = fields[i + 1]
    elseif fields[i] == 'ws:deadline' then
      -- Other programs may have written anything, and a NaN would count as past.
      deadline = #fields[i + 1] <= 16 and tonumber(string.match(fields[i + 1], '^%d+$')) or nil
    elseif fields[i] == 'ws:tracking' then
      tracked = fields[i + 1]
    end
  end
  return only, deadline, tracked
end

-- The member of the index of deadlines that stands for a message: `number:entry id`, and behind a colon
-- its tracking id, if it has one.
local function deadline_member(number, id, tracked)
  local place = number .. ':' .. id
  return tracked and tracked ~= '' and place .. ':' .. tracked or place
end

-- Splits the text of a message that was set aside: attempts, the times in ms of its last delivery and
-- of its end, then its fields and values. Each part stands behind its length. Returns nil for a text of
-- another form.
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
  -- Most delays have the same top as the delay before.
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
