-- Leases messages of a time shard that are due, the lowest due time first; then those whose lease has
-- ended. On its way it applies releases and clears what was consumed, a bounded number of them.
-- KEYS: mark, waiting, leased, messages, history, consumed, released, dead. ARGV: the caller's mark, the
-- consumer, the lease in ms, how many messages at most, from how many attempts on one is set aside.
-- Returns { whether more is to be looked at, 1 or 0; the end of the leases; then of each message id,
-- itself, due time, attempts, token }. The first write of each path removes something: a server without
-- memory lets the rest of the script pass, so that a full queue can still be emptied.
--@include time_shard
--@include time_shard_history
--@include now
local LOOKED_AT_BESIDE = 16
local waiting, leased, messages, history = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local consumed, released, dead = KEYS[6], KEYS[7], KEYS[8]
local problem = refuse({ 'zset', 'zset', 'hash', 'hash', 'set', 'zset', 'zset' })
if problem then
  return problem
end
local time = now()
local instant, ends = string.format('%.0f', time), string.format('%.0f', time + ARGV[3])
local wanted, most = tonumber(ARGV[4]), tonumber(ARGV[5])
local window = wanted + LOOKED_AT_BESIDE
local taken, found = 0, { 0, ends }

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

-- Ends a lease as its holder has asked for it: the attempt is forgotten.
local function give_back(id, takes, given_back, due, consumer)
  if redis.call('ZREM', leased, id) == 1 then
    redis.call('HSET', history, id, write_history(takes, given_back + 1, due, consumer))
    redis.call('ZADD', waiting, due, id)
  elseif redis.call('ZSCORE', waiting, id) then
    redis.call('ZADD', waiting, due, id)
  end
end

local function lease(id, due)
  local message = redis.call('HGET', messages, id)
  local takes, given_back = read_history(redis.call('HGET', history, id))
  redis.call('ZREM', waiting, id)
  if not message then
    clear(id)
    return
  end
  takes, given_back = (takes or 0) + 1, given_back or 0
  redis.call('ZADD', leased, ends, id)
  redis.call('HSET', history, id, write_history(takes, given_back, due, ARGV[2]))
  taken = taken + 1
  for _, part in ipairs({
    id, message, string.format('%.0f', due), takes - given_back, string.format('%.0f', takes),
  }) do
    found[#found + 1] = part
  end
end

local back = redis.call('ZRANGEBYSCORE', released, '-inf', instant, 'WITHSCORES', 'LIMIT', 0, window)
for i = 1, #back, 2 do
  redis.call('ZREM', released, back[i])
  local of, id = string.match(back[i], '^(%d+) (.*)$')
  local takes, given_back, _, consumer = read_history(redis.call('HGET', history, id))
  -- Somebody else's later lease is none of the releaser's.
  if takes == of and redis.call('SISMEMBER', consumed, id) == 0 then
    give_back(id, takes, given_back, back[i + 1], consumer)
  end
end

local ready = redis.call('ZRANGEBYSCORE', waiting, '-inf', instant, 'WITHSCORES', 'LIMIT', 0, window)
for i = 1, #ready, 2 do
  if taken == wanted then
    break
  end
  if redis.call('SISMEMBER', consumed, ready[i]) == 1 then
    clear(ready[i])
  else
    lease(ready[i], ready[i + 1])
  end
end
local more = #ready == 2 * window

if taken < wanted and not more then
  local ended = redis.call('ZRANGEBYSCORE', leased, '-inf', instant, 'LIMIT', 0, window)
  for _, id in ipairs(ended) do
    if taken == wanted then
      break
    end
    local takes, given_back, due, consumer = read_history(redis.call('HGET', history, id))
    local later = takes and redis.call('ZSCORE', released, takes .. ' ' .. id)
    if redis.call('SISMEMBER', consumed, id) == 1 or not takes then
      clear(id)
    elseif later then
      redis.call('ZREM', released, takes .. ' ' .. id)
      give_back(id, takes, given_back, later, consumer)
    elseif takes - given_back >= most then
      redis.call('ZREM', leased, id)
      redis.call('ZADD', dead, instant, id)
    else
      redis.call('ZREM', leased, id)
      lease(id, due)
    end
  end
  more = #ended == window
end
found[1] = taken < wanted and more and 1 or 0
return found
