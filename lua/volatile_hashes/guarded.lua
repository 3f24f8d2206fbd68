-- Runs the server's own hash command, unless this package's keys keep the hash's deadlines again.
--   KEYS[1] hash
--   KEYS[2] layout mark of this hash
--   KEYS[3] for a command with two hashes the destination
--   KEYS[4] layout mark of the destination
--   ARGV[1] the mark of a native namespace
--   ARGV[2] the command's word
--   ARGV[3..] its arguments behind the names of hashes
-- Returns the command's reply, or an error reply; then nothing was changed.
--@include layout
for i = 2, #KEYS, 2 do
  local problem = refuse_mark(KEYS[i], redis.pcall('GET', KEYS[i]), ARGV[1], 'a layout mark')
  if problem then
    return problem
  end
end
if KEYS[3] then
  return redis.pcall(ARGV[2], KEYS[1], KEYS[3], unpack(ARGV, 3))
end
return redis.pcall(ARGV[2], KEYS[1], unpack(ARGV, 3))
