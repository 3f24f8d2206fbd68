-- What scripts that look at a whole volatile hash share.
--@include one_hash

-- All fields whose deadline has passed, as a set, and their number. Complexity: O(log n + m).
local function past_fields(at)
  local list = redis.call('ZRANGEBYSCORE', deadlines, '-inf', string.format('%.0f', at))
  local set = {}
  for _, field in ipairs(list) do
    set[field] = true
  end
  return set, #list
end

-- How many fields of the hash are live. Garbage that a foreign client has deleted from the hash
-- alone is not counted twice. In runs, because there may be a million of them.
local function live_count()
  local size = redis.call('HLEN', hash)
  local past = redis.call('ZCOUNT', deadlines, '-inf', string.format('%.0f', now()))
  for first = 0, size > 0 and past - 1 or -1, 4000 do
    local last = math.min(first + 3999, past - 1)
    for _, field in ipairs(redis.call('ZRANGE', deadlines, first, last)) do
      size = size - redis.call('HEXISTS', hash, field)
    end
  end
  return size
end

-- Whether any field is live; without a look at them where more fields stand than have expired.
local function has_live()
  local past = redis.call('ZCOUNT', deadlines, '-inf', string.format('%.0f', now()))
  return redis.call('HLEN', hash) > past or live_count() > 0
end
