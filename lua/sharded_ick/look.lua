-- Says how much an ick shard needs a consumer, and who has it.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] lease
--   KEYS[5] moving
--   KEYS[6] moving dead
-- Returns { lowest score of the producer set, lowest score of the consumer set ('' where a set is
-- empty), ms left of the lease (0: free), when the lease was last taken in ms, the lease's
-- consumer, the lease's token, how many members are being moved, how many dead members are being
-- moved, size of the producer set, size of the consumer set }.
--@include ick
--@include shard
local version, pset, cset = KEYS[1], KEYS[2], KEYS[3]
local problem = refuse(version, pset, cset, false)
if problem then
  return problem
end
local wrong, lease = read_lease(KEYS[4])
if wrong then
  return wrong
end
local moving = redis.pcall('ZCARD', KEYS[5])
if type(moving) == 'table' then
  return refusal(moving, KEYS[5], 'does not hold members that are being moved')
end
local graves = redis.pcall('HLEN', KEYS[6])
if type(graves) == 'table' then
  return refusal(graves, KEYS[6], 'does not hold dead members that are being moved')
end
return {
  redis.call('ZRANGE', pset, 0, 0, 'WITHSCORES')[2] or '',
  redis.call('ZRANGE', cset, 0, 0, 'WITHSCORES')[2] or '',
  lease.left,
  lease.taken,
  lease.consumer,
  lease.token,
  moving,
  graves,
  redis.call('ZCARD', pset),
  redis.call('ZCARD', cset),
}
