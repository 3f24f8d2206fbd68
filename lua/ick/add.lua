-- Adds members with scores to an Ick; the lower of two scores wins (write folding). Members given twice are
-- taken in order.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   ARGV[1..] score and member of each (at most 1,000 pairs; none: the Ick is made, or checked)
-- Returns { new members, members whose score became lower }. The usual call, on an Ick that stands, without
-- the functions of the other cases.
if #ARGV > 0 and redis.pcall('GET', KEYS[1]) == 'ick.v1' and type(redis.pcall('ZCARD', KEYS[3])) == 'number' then
  local before = redis.pcall('ZCARD', KEYS[2])
  local touched = redis.pcall('ZADD', KEYS[2], 'LT', 'CH', unpack(ARGV))
  if type(touched) == 'number' then
    local new = redis.call('ZCARD', KEYS[2]) - before
    return { new, touched - new }
  end
end
do
  --@include ick
  return add_pairs(KEYS[1], KEYS[2], KEYS[3], ARGV)
end
