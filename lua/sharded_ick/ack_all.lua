-- Acknowledges what is reserved in a leased ick shard, whatever it is, if the caller's reservation is the one
-- that holds; extends a lease that is half over.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] held
--   KEYS[5] attempts
--   KEYS[6] lease
--   ARGV[1] the reservation's token
--   ARGV[2] the lease's token
--   ARGV[3] its time to live in ms
--   ARGV[4] how many members at most
-- Returns { how many were removed, how many are left }; nil, with nothing changed, for a caller whose lease
-- or reservation is not the one that holds.
--@include shard
--@include reservation
local version, pset, cset, held, attempts, lease_key = unpack(KEYS)
local problem, current, lease = open_held(version, pset, cset, held, attempts, lease_key, ARGV[2])
if not lease or current == '' or current ~= ARGV[1] then
  return problem or false
end
local removed, most = 0, tonumber(ARGV[4])
while removed < most do
  local list = redis.call('ZRANGE', cset, 0, math.min(most - removed, 4000) - 1)
  if #list == 0 then
    break
  end
  redis.call('ZREMRANGEBYRANK', cset, 0, #list - 1)
  if has_attempts > 0 then
    redis.call('HDEL', attempts, unpack(list))
  end
  removed = removed + #list
end
extend_if_short(lease_key, lease, ARGV[3])
end_if_done(cset, held, current, removed)
return { removed, redis.call('ZCARD', cset) }
