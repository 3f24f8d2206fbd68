-- What every script on a shuffle queue shares: the facts that its `meta` holds.
--   KEYS[1] meta, a hash: mark, namespace, span, joined, groups, group:<G>, back:<G>, plan:<G>
--@include shuffle_queue_version
--@include layout_error
--@include is_error
--@include whole
local meta = KEYS[1]

-- Refuses facts, which begin with the mark, that are no queue's. Returns an error reply or nil.
local function refuse(facts)
  if facts.err then
    return layout_error(meta, 'does not hold the facts of a shuffle queue')
  end
  if facts[1] and facts[1] ~= QUEUE_VERSION then
    return layout_error(meta, 'says ' .. facts[1] .. ' where ' .. QUEUE_VERSION .. ' was expected')
  end
end

-- The namespace of a due index, whose key is `{tag}:ws:namespace:due`.
local function namespace_of(due)
  return string.match(due, ':ws:([^:]*):due$')
end

-- Whether meta names another namespace than the due index is of. One that names none is of any.
local function is_elsewhere(named, due)
  return named and named ~= namespace_of(due)
end

local function elsewhere_error(named, due)
  return layout_error(
    meta,
    'belongs to the namespace ' .. named .. ' and not to ' .. namespace_of(due) .. ': give namespace=' .. named
  )
end

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
  redis.call('HDEL', meta, 'plan:' .. string.sub(ring, #meta + 2))
  return false
end

-- Wakes every reader that sleeps. Returns the reply, which may be an error.
local function notify(notifications, number)
  return redis.pcall('XADD', notifications, 'MAXLEN', 1, '*', 's', number)
end
