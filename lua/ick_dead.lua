-- Lists dead members of an Ick, at random if not all are asked for.
-- KEYS: version, producer set, consumer set, dead. ARGV: how many at most (1,000); or, for a walk over
-- all of them, about how many, and the walk's cursor ('0' at its beginning).
-- Returns { member, history, ... }; of a walk { cursor ('0' at its end), { member, history, ... } }.
--@include ick_graves
local problem = refuse_grave(false)
if problem then
  return problem
end
if ARGV[2] then
  return redis.call('HSCAN', dead, ARGV[2], 'COUNT', ARGV[1])
end
return redis.call('HRANDFIELD', dead, ARGV[1], 'WITHVALUES') or {}
