-- A group's ring of the streams that have anything, and those who sleep while theirs is empty.
--   KEYS[1] meta, as in shuffle_queue

-- Puts a stream into a ring. Returns whether the ring was empty: then those who sleep must be told,
-- in this script; is_empty: that it is known to be. Otherwise those who were to be served next are so no more; an empty ring has no plan.
local function ring_in(ring, number, is_empty)
  if redis.call('ZADD', ring, 'NX', number, number) == 0 then
    return false
  end
  if is_empty or redis.call('ZCARD', ring) == 1 then
    return true
  end
  -- The ring's key is `...ring:G` where that of the facts is `...meta`.
  redis.call('HDEL', KEYS[1], 'plan:' .. string.sub(ring, #KEYS[1] + 2))
  return false
end

-- Wakes every reader that sleeps. Returns the reply, which may be an error. The last notification is what
-- counts; to keep that one alone the server would pass over some fifty deleted ones each time.
local function notify(notifications, number)
  return redis.pcall('XADD', notifications, 'MAXLEN', '~', 1, '*', 's', number)
end
