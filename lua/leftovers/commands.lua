--@library
-- commands(): runs commands that stand in ARGV.

-- Runs the commands from ARGV's index `at` on: their number, then for each the number of its words and
-- the words. Returns the replies, errors in their places, and the index behind them.
local function commands(at)
  local replies = {}
  local n = tonumber(ARGV[at])
  at = at + 1
  for i = 1, n do
    local words = tonumber(ARGV[at])
    replies[i] = redis.pcall(unpack(ARGV, at + 1, at + words))
    at = at + words + 1
  end
  return replies, at
end

-- Returns a digest of replies, the same for the same ones.
local function digest(replies)
  return redis.sha1hex(cmsgpack.pack(replies))
end
