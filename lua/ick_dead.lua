-- Lists dead members of an Ick, at random if not all are asked for.
-- KEYS: version, producer set, consumer set, dead. ARGV: how many at most.
-- Returns { member, history, ... }.
--@include ick_graves
local problem = refuse_grave(false)
if problem then
  return problem
end
return redis.call('HRANDFIELD', dead, ARGV[1], 'WITHVALUES') or {}
