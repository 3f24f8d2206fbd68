--@library
-- now(): the clock of the server that holds the keys, in whole milliseconds since the epoch.
-- Tests set CLOCK_SHIFT_MS through the script loader; it is 0 for everybody else.
local CLOCK_SHIFT_MS = 0
local function now()
  local clock = redis.call('TIME')
  return clock[1] * 1000 + math.floor(clock[2] / 1000) + CLOCK_SHIFT_MS
end
