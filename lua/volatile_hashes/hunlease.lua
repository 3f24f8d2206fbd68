-- Gives a lease back, or lets it end at another moment.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   KEYS[3] due
--   KEYS[4] mark
--   KEYS[5] leases
--   ARGV[1] mark
--   ARGV[2] ''
--   ARGV[3] FIELDS
--   ARGV[4] 1
--   ARGV[5] the field
--   ARGV[6] nonce ('': whoever has it)
--   ARGV[7] in how many ms the lease ends (0: now, and the nonce is granted nothing for a minute, in case its
--     request comes late)
-- Returns 1 if the nonce had the lease, else 0.
--@include leases
local mark, leases = KEYS[4], KEYS[5]
local problem = refuse_layout(mark, ARGV[1]) or refuse_leases(leases)
if problem then
  return problem
end
local at, field, nonce, ms = now(), ARGV[5], ARGV[6], tonumber(ARGV[7])
local holder, taken = lease_on(leases, field, at)
if holder == nonce or (nonce == '' and ms == 0) then
  if ms > 0 then
    lay(leases, '=' .. field, whole(at + ms) .. ' ' .. whole(taken) .. ' ' .. nonce, ms)
  else
    void(leases, { field })
  end
  return 1
end
if ms == 0 then
  prune(leases, at)
  lay(leases, '-' .. nonce, whole(at + UNDER_WAY_MS), UNDER_WAY_MS)
end
return 0
