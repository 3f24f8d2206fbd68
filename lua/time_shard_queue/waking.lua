--@library
-- The notifications that wake sleeping takes of a time shard: see structures/time_shard_queue/redis_waiting.py.
-- A time shard's first moment is the least score of waiting, leased and released: before it no take finds
-- anything. A sleeper knows the first moment of its look, so a script notifies that makes it earlier, and no other.
--@include notify
--@include clock

-- The least score of a sorted set, the greatest number if it is empty.
local function first_moment(key)
  local found = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return tonumber(found[2] or nil) or math.huge
end

-- Wakes every take that sleeps on a time shard. The stream goes by itself when nothing comes for a minute.
local function wake(notifications)
  notify(notifications, 'w')
  redis.pcall('PEXPIRE', notifications, UNDER_WAY_MS)
end
