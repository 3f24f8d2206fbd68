-- Says how much an ick shard needs a consumer, and who has it.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] lease
--   KEYS[5] moving
--   KEYS[6] moving dead
--   KEYS[7] waiting
--   KEYS[8] terms
--   KEYS[9] moving waiting
-- Returns { lowest score of the producer set, lowest score of the consumer set ('' where a set is
-- empty), ms left of the lease (0: free), when the lease was last taken in ms, the lease's
-- consumer, the lease's token, how many members are being moved, how many dead members are being
-- moved, size of the producer set, size of the consumer set }. Members that wait count once they have rested.
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
local waits, lowest = count_waiting(KEYS[7], KEYS[8]), redis.call('ZRANGE', pset, 0, 0, 'WITHSCORES')[2] or ''
local aside = redis.pcall('ZCARD', KEYS[9])
if type(waits) == 'table' or type(aside) == 'table' then
  return type(waits) == 'table' and waits or refusal(aside, KEYS[9], 'does not hold members that are being moved')
end
local ripe = 0
if waits > 0 then
  --@include waiting
  ripe = redis.call('ZCOUNT', KEYS[7], '-inf', string.format('%.0f', now()))
  if ripe > 0 then
    -- The one that has been ripe for longest stands for the others.
    local first = redis.call('ZRANGE', KEYS[7], 0, 0)[1]
    local _, score = terms_of(redis.call('HGET', KEYS[8], first))
    lowest = lower_of(lowest ~= '' and lowest or nil, score)
  end
end
return {
  lowest,
  redis.call('ZRANGE', cset, 0, 0, 'WITHSCORES')[2] or '',
  lease.left,
  lease.taken,
  lease.consumer,
  lease.token,
  moving + aside,
  graves,
  redis.call('ZCARD', pset) + ripe,
  redis.call('ZCARD', cset),
}
