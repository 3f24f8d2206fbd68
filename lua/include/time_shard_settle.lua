-- What becomes of messages of a time shard: the rules that takes and sweepers share. Each removes before
-- it writes, so that a server without memory lets the rest of the script pass.
--   KEYS: mark, waiting, leased, messages, history, consumed, released, dead
--@include time_shard
--@include time_shard_history
local waiting, leased, messages, history = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local consumed, released, dead = KEYS[6], KEYS[7], KEYS[8]
local KINDS = { 'zset', 'zset', 'hash', 'hash', 'set', 'zset', 'zset' }

-- Removes all that there is of a message.
local function clear(id)
  local takes = read_history(redis.call('HGET', history, id))
  if takes then
    redis.call('ZREM', released, takes .. ' ' .. id)
  end
  redis.call('ZREM', waiting, id)
  redis.call('ZREM', leased, id)
  redis.call('ZREM', dead, id)
  redis.call('HDEL', messages, id)
  redis.call('HDEL', history, id)
  redis.call('SREM', consumed, id)
end

-- Applies a release, an entry "takes id" whose score is the due time: the lease ends, its attempt is
-- forgotten, and the message waits. Somebody else's later lease is none of the releaser's, and what is
-- consumed stays so. Returns whether the entry has changed anything but itself.
local function settle_release(entry, due)
  redis.call('ZREM', released, entry)
  local of, id = string.match(entry, '^(%d+) (.*)$')
  if not id or redis.call('SISMEMBER', consumed, id) == 1 then
    return false
  end
  local takes, given_back, _, consumer = read_history(redis.call('HGET', history, id))
  if takes ~= of then
    return false
  end
  if redis.call('ZREM', leased, id) == 1 then
    redis.call('HSET', history, id, write_history(takes, given_back + 1, due, consumer))
    redis.call('ZADD', waiting, due, id)
    return true
  end
  if redis.call('ZSCORE', waiting, id) then
    redis.call('ZADD', waiting, due, id)
    return true
  end
  return false
end

-- Says what becomes of a message whose lease has ended, and does it where it is not to be worked on
-- again at once. Returns
--   'cleared'   it was consumed, or is no message any more
--   'returned'  it was released, and waits for its due time
--   'buried'    it has been taken `most` times, released ones not counted: it is set aside
--   'ended'     nothing was changed; the second value is its due time: take it anew, or let it wait
local function settle_ended(id, instant, most)
  local takes, given_back, due = read_history(redis.call('HGET', history, id))
  if not takes or redis.call('SISMEMBER', consumed, id) == 1 then
    clear(id)
    return 'cleared'
  end
  local entry = takes .. ' ' .. id
  local later = redis.call('ZSCORE', released, entry)
  if later then
    settle_release(entry, later)
    return 'returned'
  end
  if takes - given_back >= most then
    redis.call('ZREM', leased, id)
    redis.call('ZADD', dead, instant, id)
    return 'buried'
  end
  return 'ended', due
end
