-- Acknowledges members of a leased ick shard; extends a lease that is half over.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] held
--   KEYS[5] attempts
--   KEYS[6] lease
--   ARGV[1] the reservation's token ('' for none)
--   ARGV[2] the lease's token
--   ARGV[3] its time to live in ms
--   ARGV[4..] members
-- Returns how many were removed: none for a caller whose lease or reservation is not the one that holds.
--@include shard
--@include reservation
local version, pset, cset, held, attempts, lease_key = unpack(KEYS)
local problem, current, lease = open_held(version, pset, cset, held, attempts, lease_key, ARGV[2])
if not lease then
  return problem or 0
end
extend_if_short(lease_key, lease, ARGV[3])
local acked = ack(cset, attempts, ARGV, current, ARGV[1], 4)
end_if_done(cset, held, current, acked)
return acked
