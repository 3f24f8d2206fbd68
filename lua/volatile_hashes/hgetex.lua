-- HGETEX hash EX | PX | EXAT | PXAT time | PERSIST FIELDS n field ..., for a volatile hash.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   KEYS[3] due
--   KEYS[4] mark
--   ARGV[1] the time of a usual call, which has EX or PX, in ms; else the mark
--   ARGV[2..] of a usual call: the mark, fields; else the arguments in the command's own order
-- Returns a list of values, nil for what is missing or expired.
--@include timed
local hash, deadlines, due, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local at, ms = now(), tonumber(ARGV[1])
local values = ms and touch_usual(hash, deadlines, due, mark, ARGV[2], at, at + ms, ARGV, 3, #ARGV)
if values then
  return values
end
do
  --@include timed
  local args = ms and spelled_out(ARGV[2], ARGV[1], ARGV, 3, #ARGV) or ARGV
  return touch_any(hash, deadlines, due, mark, args, at)
end
