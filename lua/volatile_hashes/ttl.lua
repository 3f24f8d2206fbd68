-- TTL hash, and its siblings, for a whole volatile hash.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   ARGV[1] the command
-- Returns as the command does; -2 also when no field is live.
--@include hash
local hash, deadlines = KEYS[1], KEYS[2]
if redis.call('TYPE', hash).ok == 'hash' and not has_live(hash, deadlines) then
  return -2
end
if ARGV[1] == 'EXPIRETIME' or ARGV[1] == 'PEXPIRETIME' then
  return end_of_hash(hash, ARGV[1])
end
return redis.pcall(ARGV[1], hash)
