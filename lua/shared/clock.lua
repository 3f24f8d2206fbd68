--@library
-- The clock of the server that holds the keys, and the tokens that are made of it.

-- Tests set CLOCK_SHIFT_MS through the script loader; it is 0 for everybody else.
local CLOCK_SHIFT_MS = 0
-- Whole milliseconds since the epoch.
local function now()
  local clock = redis.call('TIME')
  return clock[1] * 1000 + math.floor(clock[2] / 1000) + CLOCK_SHIFT_MS
end

-- How long a call may be under way whose caller has given up.
local UNDER_WAY_MS = 60000

-- Tokens: microseconds since the epoch as text, 16 digits until the year 2286 and 17 from then on. A number of
-- Lua is exact up to 2255 only, so they are never made numbers.

-- The clock of the server as TIME gives it, in seconds and microseconds.
local function server_time()
  local clock = redis.call('TIME')
  return { clock[1] + math.floor(CLOCK_SHIFT_MS / 1000), clock[2] }
end

-- Whether a token is greater than another: more digits, or the same number and later ones.
local function is_greater(a, b)
  return #a > #b or #a == #b and a > b
end

-- next_token(previous, clock): the token of a new holder, greater than the one before, '' for none.
local function next_token(previous, clock)
  local token = string.format('%.0f%06d', clock[1], clock[2])
  if is_greater(token, previous) then
    return token
  end
  -- A clock that was set back must not repeat a token.
  local kept, nines = string.match(previous, '^(%d-)(9*)$')
  local last = tonumber(string.sub(kept, -1)) or 0
  return string.sub(kept, 1, -2) .. last + 1 .. string.rep('0', #nines)
end
