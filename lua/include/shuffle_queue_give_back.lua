-- give_back(): lets a pending entry, which its stream's group has given to the consumer
-- workstealing:returned already, be served again. What nacks, recovers or revives ends in this.
--@include shuffle_queue

-- Arguments: the keys of the group and of the notifications; the group; the stream's number; the
-- entry's id; the ms at which it returns, nil for now. Returns whether notify() is to be called: a
-- delayed one is told of too, so that those who sleep learn until when they may.
local function give_back(ring, returned, delayed, group, number, id, at)
  redis.call('HSET', meta, 'back:' .. group, 1)
  -- A plan knows nothing of what returns.
  redis.call('HDEL', meta, 'plan:' .. group)
  if at then
    redis.call('ZADD', delayed, whole(at), number .. ':' .. id)
    return true
  end
  redis.call('ZADD', returned, number, number .. ':' .. id)
  return ring_in(ring, number)
end
