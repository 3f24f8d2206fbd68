-- Does neighbouring usual calls of HGETEX in a transaction one after the other, each as hgetex does it.
--   KEYS[1..] of each call: hash, deadlines, due, mark
--   ARGV[1..] of each call: the number of its arguments, and these as hgetex has them
-- Returns the reply to each, which may be an error.
--@include timed
local at, first, replies = now(), 2, {}
for i = 1, #KEYS, 4 do
  local hash, deadlines, due, mark = KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3]
  local ms, expected, last = ARGV[first], ARGV[first + 1], first - 1 + ARGV[first - 1]
  local done, reply = pcall(touch_usual, hash, deadlines, due, mark, expected, at, at + ms, ARGV, first + 2, last)
  if not done then
    reply = reply_of({ hash, deadlines, due, mark }, false, reply)
  elseif not reply then
    --@include timed
    local args = spelled_out(expected, ms, ARGV, first + 2, last)
    reply = reply_of({ hash, deadlines, due, mark }, pcall(touch_any, hash, deadlines, due, mark, args, at))
  end
  replies[#replies + 1], first = reply, last + 2
end
return replies
