--@library
-- The place of a queue in the due index of its one namespace, for the scripts by which it is in use. They
-- begin with refuse_place() and end with keep_alive(). For them:
--   KEYS[1] meta, a hash, whose field `namespace` names the queue's namespace
--   KEYS[2] the due index, a sorted set: queue -> the moment from which it is idle for its ttl
--   KEYS[3] the layout mark of the index shard, a string
--   ARGV[1] the mark that the caller was written for; ARGV[2] the queue; ARGV[3] its ttl in ms
--@include clock
--@include layout
--@include values

-- The namespace of a due index, whose key is `{tag}:ws:namespace:due`.
local function namespace_of(due)
  return string.match(due, ':ws:([^:]*):due$')
end

-- Whether meta names another namespace than the due index is of. One that names none is of any.
local function is_elsewhere(named, due)
  return named and not string.find(due, ':ws:' .. named .. ':due', 1, true)
end

local function elsewhere_error(named, due)
  return layout_error(
    KEYS[1],
    'belongs to the namespace ' .. named .. ' and not to ' .. namespace_of(due) .. ': give namespace=' .. named
  )
end

-- The namespace that meta names, if any. The caller of keep_alive() sets it; refuse_place() does.
local is_named

-- Writes down that the queue is in use, in the due index of its one namespace. (With a second
-- namespace, that one's job would delete the queue as soon as it was idle there.) A full server refuses
-- this as a first write. found: the text of the layout mark; at: the queue's entry; moment: the server's
-- time in ms, nil to ask for it.
local function keep_alive(found, at, longer_ms, moment)
  if not found then
    redis.call('SET', KEYS[3], ARGV[1])
  end
  if not is_named then
    --@include queue_place
    redis.call('HSET', KEYS[1], 'namespace', namespace_of(KEYS[2]))
  end
  local idle = (moment or now()) + ARGV[3] + (longer_ms or 0)
  if not at or tonumber(at) < idle then
    -- The entry is put up to this much later, so that not every message moves it.
    redis.call('ZADD', KEYS[2], whole(idle + math.min(1000, math.floor(ARGV[3] / 64))), ARGV[2])
  end
end

-- Refuses a foreign namespace, and a queue of another one. named: the namespace that the queue names, if
-- any. Returns an error reply, or nil, what the layout mark says, and the entry.
local function refuse_place(named)
  local due, mark = KEYS[2], KEYS[3]
  if is_elsewhere(named, due) then
    --@include queue_place
    return elsewhere_error(named, due)
  end
  is_named = named
  local found = redis.pcall('GET', mark)
  if found and found ~= ARGV[1] then
    --@include layout
    local problem = refuse_mark(mark, found, ARGV[1], 'a layout mark')
    if problem then
      return problem
    end
  end
  local at = redis.pcall('ZSCORE', due, ARGV[2])
  if is_error(at) then
    --@include layout
    return refusal(at, due, 'does not hold a due index')
  end
  return nil, found, at
end
