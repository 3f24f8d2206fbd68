--@library
-- The fate of a time shard's messages: the rules that takes and sweepers share. Each function removes
-- something before it writes, so a full server allows the rest of the script.
--@include time_shard
-- The types of the keys behind the mark, in this order.
local KINDS = { 'zset', 'zset', 'hash', 'hash', 'set', 'zset', 'zset' }

-- Removes every part of a message.
local function clear(waiting, leased, messages, history, consumed, released, dead, id)
  local takes = read_history(redis.call('HGET', history, id), history)
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

-- Reads a release, an entry "takes id" of `released`. Returns the id, takes, how often the message was
-- given back, and the consumer. Returns nil if the release is void: somebody else has leased the message
-- since, or it is consumed. Returns false if the history cannot be believed.
local function read_release(waiting, leased, history, consumed, released, entry)
  local of, id = string.match(entry, '^(%d+) (.*)$')
  if not id or redis.call('SISMEMBER', consumed, id) == 1 then
    return nil
  end
  local takes, given_back, _, consumer = read_history(redis.call('HGET', history, id), history)
  if takes == false then
    return false
  end
  local is_there = redis.call('ZSCORE', leased, id) or redis.call('ZSCORE', waiting, id)
  if takes == of and is_there then
    return id, takes, given_back, consumer
  end
end

-- Applies a release, whose score is the due time: the lease ends, the attempt is forgotten, and the
-- message waits. Returns whether anything beside the entry itself has changed.
local function settle_release(waiting, leased, history, consumed, released, entry, due)
  local id, takes, given_back, consumer = read_release(waiting, leased, history, consumed, released, entry)
  if id == false or not is_moment(released, due) then
    return false
  end
  redis.call('ZREM', released, entry)
  if not id then
    return false
  end
  if redis.call('ZREM', leased, id) == 1 then
    redis.call('HSET', history, id, write_history(takes, given_back + 1, due, consumer))
  end
  redis.call('ZADD', waiting, due, id)
  return true
end

-- Decides the fate of a message whose lease has ended; changes nothing. Returns
-- 'cleared', 'returned' with the due time and the entry of its release, 'extended' with the new end,
-- 'buried', 'ended' with its due time, or 'unbelieved'; see settle_ended().
local function fate_of(history, consumed, released, id, instant, most)
  local takes, given_back, due, _, extended = read_history(redis.call('HGET', history, id), history)
  if takes == nil or redis.call('SISMEMBER', consumed, id) == 1 then
    return 'cleared'
  elseif not takes then
    return 'unbelieved'
  end
  local entry = takes .. ' ' .. id
  local later = redis.call('ZSCORE', released, entry)
  if later then
    return 'returned', later, entry
  end
  if tonumber(extended) > tonumber(instant) then
    return 'extended', extended
  end
  return takes - given_back >= most and 'buried' or 'ended', due
end

-- Settles a message whose lease has ended, unless it is to be worked on again at once. Returns
--   'cleared'   it was consumed, or it has gone
--   'returned'  it was released, and waits for its due time
--   'extended'  its holder has asked for more time, and keeps it until then
--   'buried'    it has been taken `most` times, without the released ones, and is set aside
--   'unbelieved' nothing was changed, because the message's history cannot be believed
--   'ended'     nothing was changed; the caller takes it anew or lets it wait; with its due time
local function settle_ended(waiting, leased, messages, history, consumed, released, dead, id, instant, most)
  local fate, due, entry = fate_of(history, consumed, released, id, instant, most)
  if fate == 'cleared' then
    clear(waiting, leased, messages, history, consumed, released, dead, id)
  elseif fate == 'returned' then
    settle_release(waiting, leased, history, consumed, released, entry, due)
  elseif fate == 'extended' then
    redis.call('ZREM', leased, id)
    redis.call('ZADD', leased, due, id)
  elseif fate == 'buried' then
    redis.call('ZREM', leased, id)
    redis.call('ZADD', dead, instant, id)
  end
  return fate, due
end
