-- count_delays(): adds pickup delays to the histogram of a group, whose buckets have powers of two as tops.

-- Arguments: the group's state; delays in ms, a text of `ms:how many`. A full server may count none of them.
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
