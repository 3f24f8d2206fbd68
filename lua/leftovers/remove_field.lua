-- Removes a field of a hash, if it still holds the value that was judged.
-- KEYS: the hash, the audit stream. ARGV: as of note(); own: the field, the value, the room.
-- Returns 1, or 0 if it holds another value, or none.
--@include note
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' or redis.call('HGET', KEYS[1], ARGV[2]) ~= ARGV[3] then
  return 0
end
redis.call('HDEL', KEYS[1], ARGV[2])
note(1)
return 1
