-- TTL hash, and its siblings, for a whole volatile hash.
-- KEYS: hash, deadlines. ARGV: the command. Returns as the command does; -2 also when no field is live.
--@include hash
if redis.call('TYPE', hash).ok == 'hash' and not has_live() then
  return -2
end
if ARGV[1] == 'EXPIRETIME' or ARGV[1] == 'PEXPIRETIME' then
  return end_of_hash(ARGV[1])
end
return redis.pcall(ARGV[1], hash)
