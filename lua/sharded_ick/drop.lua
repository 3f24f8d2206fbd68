-- Removes members that were copied from those set aside, if they are still what was copied.
--   KEYS[1] lease
--   KEYS[2] moving
--   KEYS[3] moving dead
--   KEYS[4] moving attempts
--   KEYS[5] moving waiting
--   KEYS[6] moving terms
--   ARGV[1] the token of the caller's lease
--   ARGV[2] its time to live in ms
--   ARGV[3] how many members
--   ARGV[4] how many dead members
--   ARGV[5..] member and score of each; then dead members, each with its history; then members that wait, each
--     with the time when it is ripe and its terms
-- Returns how many were removed; nil, with nothing changed, if the lease is not held any more.
--@include shard
local problem, lease = held_lease(KEYS[1], ARGV[1])
if not lease then
  return problem or false
end
problem = refuse_key('ZCARD', KEYS[2], 'members that are being moved')
  or refuse_key('HLEN', KEYS[3], 'dead members that are being moved')
  or refuse_key('HLEN', KEYS[4], 'what is noted of members that are being moved')
  or refuse_key('ZCARD', KEYS[5], 'waiting members that are being moved')
  or refuse_key('HLEN', KEYS[6], 'the terms of members that are being moved')
if problem then
  return problem
end
extend_if_short(KEYS[1], lease, ARGV[2])
local removed, last = 0, 4 + 2 * ARGV[3]
local last_dead = last + 2 * ARGV[4]
for i = 5, last, 2 do
  if redis.call('ZSCORE', KEYS[2], ARGV[i]) == ARGV[i + 1] then
    removed = removed + redis.call('ZREM', KEYS[2], ARGV[i])
    redis.call('HDEL', KEYS[4], ARGV[i])
  end
end
for i = last + 1, last_dead, 2 do
  if redis.call('HGET', KEYS[3], ARGV[i]) == ARGV[i + 1] then
    removed = removed + redis.call('HDEL', KEYS[3], ARGV[i])
  end
end
for i = last_dead + 1, #ARGV, 3 do
  local moment, terms = redis.call('ZSCORE', KEYS[5], ARGV[i]), redis.call('HGET', KEYS[6], ARGV[i])
  if moment == ARGV[i + 1] and (terms or '') == ARGV[i + 2] then
    removed = removed + redis.call('ZREM', KEYS[5], ARGV[i])
    redis.call('HDEL', KEYS[6], ARGV[i])
  end
end
if redis.call('EXISTS', KEYS[2], KEYS[3]) == 0 then
  -- The attempts of members that had gone before.
  redis.call('UNLINK', KEYS[4])
end
return removed
