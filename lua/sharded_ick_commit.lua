-- Commits members of a leased ick shard; renews a lease that is half over.
-- KEYS: version, producer set, consumer set, held, attempts, lease. ARGV: the reservation's token (''
-- for none), the lease's token, its time to live in ms, members. Returns how many were removed: none
-- for a caller whose lease or reservation is not the one that holds.
--@include ick_reservation
--@include sharded_ick_lease
local problem = refuse(false)
local wrong, lease = read_lease(KEYS[6])
local current = problem or wrong or current_token()
if type(current) == 'table' then
  return current
end
if not is_held(lease, ARGV[2]) then
  return 0
end
extend_if_short(KEYS[6], lease, ARGV[3])
local committed = commit(current, ARGV[1], 4)
if committed > 0 and current ~= '' and redis.call('EXISTS', cset) == 0 then
  -- It is done with. A client without tokens may reserve the same members from now on.
  redis.call('SET', held, redis.call('GETRANGE', held, 0, HELD_HEAD - 1))
end
return committed
