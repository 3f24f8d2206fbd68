-- Commits what is reserved in a leased ick shard, whatever it is, if the caller's reservation is the one
-- that holds; renews a lease that is half over.
-- KEYS: version, producer set, consumer set, held, attempts, lease. ARGV: the reservation's token, the
-- lease's token, its time to live in ms, how many members at most.
-- Returns { how many were removed, how many are left }; nil, with nothing changed, for a caller whose
-- lease or reservation is not the one that holds.
--@include ick_reservation
--@include sharded_ick_lease
local problem = refuse(false)
local wrong, lease = read_lease(KEYS[6])
local current = problem or wrong or current_token()
if type(current) == 'table' then
  return current
end
if current == '' or current ~= ARGV[1] or not is_held(lease, ARGV[2]) then
  return false
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
extend_if_short(KEYS[6], lease, ARGV[3])
local left = redis.call('ZCARD', cset)
if removed > 0 and left == 0 then
  -- As in sharded_ick_commit: it is done with.
  redis.call('SET', held, redis.call('GETRANGE', held, 0, HELD_HEAD - 1))
end
return { removed, left }
