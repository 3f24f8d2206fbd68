-- What scripts on durable keys share: how a key is looked at.
--   key: the user's own, a string without a time to live of the server's
--   due: the due index of its index shard, a sorted set: key -> deadline in ms since the epoch
--@include now
--@include layout_error

-- Returns the deadline that the due index has for a key, or nil, and an error reply or nil.
local function indexed_deadline(key, due)
  local deadline = redis.pcall('ZSCORE', due, key)
  if type(deadline) == 'table' then
    return nil, layout_error(due, 'does not hold a due index')
  end
  return deadline and tonumber(deadline)
end

-- The one rule of expiry: a key is gone from the millisecond of its deadline on.
-- Returns the type of what a reader finds at a key ('none' from its deadline on), its deadline or
-- nil, and an error reply or nil. Where somebody else has set a time to live, the server will delete
-- the key by itself: the earlier of both is its deadline.
local function look(key, due, at)
  local kind = redis.call('TYPE', key).ok
  local deadline, problem = indexed_deadline(key, due)
  if problem then
    return nil, nil, problem
  end
  if kind == 'none' then
    return kind
  end
  if kind ~= 'string' then
    -- Somebody else's: an entry in the due index is that of a durable key that stood here before.
    deadline = nil
  end
  local left = redis.call('PTTL', key)
  if left >= 0 then
    deadline = math.min(deadline or at + left, at + left)
  end
  if kind == 'string' and deadline and deadline <= at then
    return 'none'
  end
  return kind, deadline
end
