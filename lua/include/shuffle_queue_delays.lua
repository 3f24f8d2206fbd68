-- count_delays(): adds pickup delays to the histogram of a group, whose buckets have powers of two as tops.

-- Arguments: the group's state; delays in ms, a text of numbers. A full server may count none of them.
local function count_delays(state, delays)
  local counts = {}
  for delay in string.gmatch(delays, '%d+') do
    local top, ms = 1, tonumber(delay)
    while top < ms do
      top = top * 2
    end
    counts[top] = (counts[top] or 0) + 1
  end
  for top, count in pairs(counts) do
    redis.pcall('HINCRBY', state, 'delay:' .. string.format('%.0f', top), count)
  end
end
