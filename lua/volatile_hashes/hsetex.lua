-- HSETEX hash [FNX | FXX] [EX | PX | EXAT | PXAT time | KEEPTTL] FIELDS n field value ..., for a volatile hash.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   KEYS[3] due
--   KEYS[4] mark
--   ARGV[1] the time of a usual call, which has EX or PX alone, in ms; else the mark
--   ARGV[2..] of a usual call: the mark, field, value, ...; else the arguments in the command's own order
-- Returns 1, or 0 when FNX or FXX is not met and nothing was changed.
--@include timed
local hash, deadlines, due, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local at, ms = now(), tonumber(ARGV[1])
if ms and set_usual(hash, deadlines, due, mark, ARGV[2], at + ms, ARGV, 3, #ARGV) then
  return 1
end
do
  --@include timed
  local args = ms and spelled_out(ARGV[2], ARGV[1], ARGV, 3, #ARGV) or ARGV
  return set_any(hash, deadlines, due, mark, args, at)
end
