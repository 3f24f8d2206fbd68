-- keep_alive(): the queue's place in the due index of its namespace, of which a queue has one: a second
-- one's job would delete it as soon as it is idle there alone.
--   KEYS[2] the due index, a sorted set: queue -> the moment from which it has been idle for its ttl
--   KEYS[3] the layout mark of the index shard, a string
--   ARGV[1] the mark that the caller was written for; ARGV[2] the queue; ARGV[3] its ttl in ms
--@include now
--@include shuffle_queue
--@include refuse_mark
local due, mark = KEYS[2], KEYS[3]
-- The entry moves once in a while, not with every message: it stands up to this much later.
local AHEAD_MS = math.min(1000, math.floor(ARGV[3] / 64))
local is_named

-- Refuses a foreign queue, a foreign namespace, and a queue of another one. facts: of the queue, the mark
-- first; named: the namespace that they name, if any. Returns an error reply, or nil, what the layout
-- mark says, and the entry.
local function refuse_queue(facts, named)
  local problem = refuse(facts)
  if problem then
    return problem
  end
  if is_elsewhere(named, due) then
    return elsewhere_error(named, due)
  end
  is_named = named
  local found = redis.pcall('GET', mark)
  problem = refuse_mark(mark, found, ARGV[1], 'a layout mark')
  if problem then
    return problem
  end
  local at = redis.pcall('ZSCORE', due, ARGV[2])
  if is_error(at) then
    return layout_error(due, 'does not hold a due index')
  end
  return nil, found, at
end

-- Writes down that the queue is in use. Not the first write of a script on a full server.
local function keep_alive(found, at, longer_ms)
  if not found then
    redis.call('SET', mark, ARGV[1])
  end
  if not is_named then
    redis.call('HSET', meta, 'namespace', namespace_of(due))
  end
  local idle = now() + ARGV[3] + (longer_ms or 0)
  if not at or tonumber(at) < idle then
    redis.call('ZADD', due, whole(idle + AHEAD_MS), ARGV[2])
  end
end
