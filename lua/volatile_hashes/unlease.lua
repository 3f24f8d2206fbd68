-- Gives a lease back, or lets it end at another moment.
-- KEYS: hash, deadlines, due, mark, leases. ARGV: mark, '', FIELDS, 1, the field, nonce ('': whoever has it),
-- in how many ms the lease ends (0: now, and the nonce is granted nothing for a minute, in case its request
-- comes late). Returns 1 if the nonce had the lease, else 0.
--@include leases
local problem = refuse_layout() or refuse_leases()
if problem then
  return problem
end
local at, field, nonce, ms = now(), ARGV[5], ARGV[6], tonumber(ARGV[7])
local holder, taken = lease_on(field, at)
if holder == nonce or (nonce == '' and ms == 0) then
  if ms > 0 then
    lay('=' .. field, whole(at + ms) .. ' ' .. whole(taken) .. ' ' .. nonce, ms)
  else
    void({ field })
  end
  return 1
end
if ms == 0 then
  prune(at)
  lay('-' .. nonce, whole(at + UNDER_WAY_MS), UNDER_WAY_MS)
end
return 0
