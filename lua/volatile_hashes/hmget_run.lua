-- Does neighbouring calls of HMGET in a transaction one after the other, each as hmget does it.
--   KEYS[1..] of each call: hash, deadlines
--   ARGV[1..] of each call: the number of its fields, and these
-- Returns the reply to each, which may be an error.
--@include timed
local at, first, replies = now(), 2, {}
for i = 1, #KEYS, 2 do
  local hash, deadlines = KEYS[i], KEYS[i + 1]
  local last = first - 1 + ARGV[first - 1]
  local done, reply = pcall(read_usual, hash, deadlines, at, ARGV, first, last)
  if not done then
    reply = reply_of({ hash, deadlines }, false, reply)
  elseif not reply then
    --@include hash
    local fields = { unpack(ARGV, first, last) }
    reply = reply_of({ hash, deadlines }, pcall(live_values, hash, deadlines, fields, at))
  end
  replies[#replies + 1], first = reply, last + 2
end
return replies
