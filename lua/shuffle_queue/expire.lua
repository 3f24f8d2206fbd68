-- Deletes some keys of a shuffle queue that has been idle for its time to live, unless somebody has used
-- it since.
-- KEYS: meta, due index, then the keys. ARGV: the queue's name, 1 to delete it whatever the due
-- index says, joined and span as they were at the look, what is deleted, and by that:
--   streams: the span that is left
--   group: most keys; the group. KEYS[3] is its dead: messages there are left, and so is the group,
--     unless all is deleted
--   rest: most keys; ms from now to the next look if a group is left, or else an empty text: then
--     meta goes last, and with it the queue's place in the due index
-- Returns { keys deleted, 1 if this part is done }. Returns { -1, 0 } if somebody has used the queue
-- since, or if it belongs to another namespace: then only its place in this due index goes.
--@include queue
local due = KEYS[2]
local about = redis.pcall('HMGET', meta, 'mark', 'joined', 'span', 'namespace')
local problem = refuse(about)
if problem then
  return problem
end
local deadline = redis.pcall('ZSCORE', due, ARGV[1])
if type(deadline) == 'table' then
  return refusal(deadline, due, 'does not hold a due index')
end
span_of(about[3])
local joined_before = joined_of(about[2])
stored(due, 'the moment of ' .. ARGV[1], deadline, 0, MOST_STORED, 0)
groups_of(redis.call('HGET', meta, 'groups'))
if unbelieved then
  return unbelieved
end
local is_forced = ARGV[2] == '1'
if is_elsewhere(about[4], due) then
  if is_forced then
    return elsewhere_error(about[4], due)
  end
  -- The job of the queue's own namespace knows whether it is idle.
  redis.call('ZREM', due, ARGV[1])
  return { -1, 0 }
end
if not is_forced and not (deadline and tonumber(deadline) <= now()) then
  return { -1, 0 }
end
if (about[2] or '') ~= ARGV[3] or (about[3] or '') ~= ARGV[4] then
  return { -1, 0 }
end
local deleted = 0

-- Gives the rest of a queue that is deleted without having a place in the due index such a place, so that the
-- expiry finds it if this caller dies.
local function leave_to_expiry()
  if not deadline then
    redis.call('ZADD', due, whole(now()), ARGV[1])
  end
end

-- Deletes the keys from the first one on, unless `limit` are deleted before. Returns whether all
-- are.
local function unlink_from(first, limit)
  for i = first, #KEYS do
    if deleted == limit then
      return false
    end
    deleted = deleted + redis.call('UNLINK', KEYS[i])
  end
  return true
end

local function delete_streams()
  for i = 3, #KEYS do
    deleted = deleted + redis.call('UNLINK', KEYS[i])
  end
  -- The next call finds these streams. A writer raises the span again.
  redis.call('HSET', meta, 'span', ARGV[6])
  leave_to_expiry()
  return { deleted, 1 }
end

local function delete_group()
  local limit, group = tonumber(ARGV[6]), ARGV[7]
  -- These go before the keys that they are about, and also if the group stays because of its dead.
  redis.call('HDEL', meta, 'back:' .. group, 'plan:' .. group, 'turns:' .. group)
  leave_to_expiry()
  if not unlink_from(4, limit) then
    return { deleted, 0 }
  end
  if not is_forced and redis.call('TYPE', KEYS[3]).ok == 'hash' then
    return { deleted, 1 }
  end
  if deleted == limit then
    return { deleted, 0 }
  end
  deleted = deleted + redis.call('UNLINK', KEYS[3])
  redis.call('HDEL', meta, 'group:' .. group)
  redis.call('HINCRBY', meta, 'groups', -1)
  -- Writers must not fill the ring of this group any more.
  local joined = math.max(now(), joined_before + 1)
  redis.call('HSET', meta, 'joined', whole(joined))
  return { deleted, 1 }
end

local function delete_rest()
  local limit = tonumber(ARGV[6])
  if not unlink_from(3, limit) then
    leave_to_expiry()
    return { deleted, 0 }
  end
  if ARGV[7] ~= '' then
    redis.call('ZADD', due, 'XX', whole(now() + ARGV[7]), ARGV[1])
    return { deleted, 1 }
  end
  if deleted == limit then
    leave_to_expiry()
    return { deleted, 0 }
  end
  -- A meta without a mark has held only the span.
  deleted = deleted + (redis.call('UNLINK', meta) == 1 and about[1] and 1 or 0)
  redis.call('ZREM', due, ARGV[1])
  return { deleted, 1 }
end

if ARGV[5] == 'streams' then
  return delete_streams()
elseif ARGV[5] == 'group' then
  return delete_group()
end
return delete_rest()
