--@library
-- commands(): runs commands that stand in a script's arguments.

-- Runs the commands from the arguments' index `at` on: their number, then for each the number of its words and
-- the words. Returns the replies, errors in their places, and the index behind them.
local function commands(args, at)
  local replies = {}
  local n = tonumber(args[at])
  at = at + 1
  for i = 1, n do
    local words = tonumber(args[at])
    replies[i] = redis.pcall(unpack(args, at + 1, at + words))
    at = at + words + 1
  end
  return replies, at
end

-- Returns a digest of replies, the same for the same ones.
local function digest(replies)
  return redis.sha1hex(cmsgpack.pack(replies))
end
