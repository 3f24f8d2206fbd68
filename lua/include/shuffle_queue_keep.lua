-- keep_alive(): the queue's place in the due index of its namespace, of which a queue has one: a second
-- one's job would delete it as soon as it is idle there alone.
--   KEYS[1] meta, as in shuffle_queue
--   KEYS[2] the due index, a sorted set: queue -> the moment from which it has been idle for its ttl
--   KEYS[3] the layout mark of the index shard, a string
--   ARGV[1] the mark that the caller was written for; ARGV[2] the queue; ARGV[3] its ttl in ms
--@include now
--@include whole
--@include shuffle_queue_namespace

-- The namespace that meta names, if any; whoever calls keep_alive() sets it.
local is_named

-- Writes down that the queue is in use. Not the first write of a script on a full server.
-- found: what the mark says; at: the queue's entry; moment: the server's time in ms, nil to ask for it.
local function keep_alive(found, at, longer_ms, moment)
  if not found then
    redis.call('SET', KEYS[3], ARGV[1])
  end
  if not is_named then
    redis.call('HSET', KEYS[1], 'namespace', namespace_of(KEYS[2]))
  end
  local idle = (moment or now()) + ARGV[3] + (longer_ms or 0)
  if not at or tonumber(at) < idle then
    -- The entry moves once in a while, not with every message: it stands up to this much later.
    redis.call('ZADD', KEYS[2], whole(idle + math.min(1000, math.floor(ARGV[3] / 64))), ARGV[2])
  end
end
