-- Removes a field of a hash, if it still holds the value that was judged.
--   KEYS[1] the hash
--   KEYS[2] the audit stream
--   ARGV[1] how many arguments of the rule's own follow
--   ARGV[2] the field
--   ARGV[3] the value
--   ARGV[4] the room: the most parts that the slice may still remove
--   ARGV[5..] the audit stream's most entries, the ms after which it ends, and the fields of the line
-- Returns 1, or 0 if it holds another value, or none.
--@include note
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' or redis.call('HGET', KEYS[1], ARGV[2]) ~= ARGV[3] then
  return 0
end
redis.call('HDEL', KEYS[1], ARGV[2])
note(KEYS[2], ARGV, 1)
return 1
