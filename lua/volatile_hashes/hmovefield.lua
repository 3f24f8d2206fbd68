-- Moves a field of a volatile hash, with its deadline, to a field of another hash (or of the same
-- hash).
--   KEYS[1] hash of the source
--   KEYS[2] deadlines of the source
--   KEYS[3] due index of the source
--   KEYS[4] layout mark of the source
--   KEYS[5] hash of the destination
--   KEYS[6] deadlines of the destination
--   KEYS[7] due index of the destination
--   KEYS[8] layout mark of the destination
--   KEYS[9] leases of the destination
--   ARGV[1] the mark that the caller expects
--   ARGV[2] FIELDS
--   ARGV[3] 2
--   ARGV[4] the field
--   ARGV[5] the field's new name
-- Returns 1, or 0 when there is no such field; no computer of the new one stores anything over it.
--@include leases
--@include two_hashes
local hash, deadlines, due, mark, to_hash, to_deadlines, to_due, to_mark, leases = unpack(KEYS)
local field, to_field = ARGV[4], ARGV[5]
local problem = refuse_leases(leases) or refuse_either(hash, deadlines, due, mark, to_deadlines, to_due, to_mark, ARGV[1])
if problem then
  return problem
end
local there = redis.pcall('HLEN', to_hash)
if type(there) == 'table' then
  return there
end
drop_past(hash, deadlines, { field })
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
remove(hash, deadlines, { field })
tidy(hash, deadlines, due)
void(leases, { to_field })
return 1
