-- Acknowledges members of a leased ick shard; extends a lease that is half over.
-- KEYS: version, producer set, consumer set, held, attempts, lease. ARGV: the reservation's token (''
-- for none), the lease's token, its time to live in ms, members. Returns how many were removed: none
-- for a caller whose lease or reservation is not the one that holds.
--@include shard
--@include reservation
local problem, current, lease = open_held(ARGV[2])
if not lease then
  return problem or 0
end
extend_if_short(KEYS[6], lease, ARGV[3])
local acked = ack(current, ARGV[1], 4)
end_if_done(current, acked)
return acked
