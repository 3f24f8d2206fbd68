-- Moves a field of a volatile hash, with its deadline, to a field of another one (or of the same).
-- KEYS: hash, deadlines, due, mark of the source, then of the destination, the destination's leases.
-- ARGV: mark, FIELDS, 2, the field, its new name.
-- Returns 1, or 0 when there is no such field; no computer of the new one stores anything over it.
--@include leases
--@include two_hashes
local field, to_field = ARGV[4], ARGV[5]
local problem = refuse_leases() or refuse_either()
if problem then
  return problem
end
local there = redis.pcall('HLEN', to_hash)
if type(there) == 'table' then
  return there
end
drop_past({ field })
local value = redis.call('HGET', hash, field)
if not value then
  return 0
end
local deadline = redis.call('ZSCORE', deadlines, field)
if deadline then
  -- The first write, which a full server refuses.
  local told = redis.pcall('ZADD', to_due, 'LT', deadline, to_hash)
  if type(told) == 'table' then
    return told
  end
  redis.call('ZADD', to_deadlines, deadline, to_field)
end
local set = redis.pcall('HSET', to_hash, to_field, value)
if type(set) == 'table' then
  return set
end
if not deadline then
  redis.call('ZREM', to_deadlines, to_field)
end
remove({ field })
tidy()
void({ to_field })
return 1
