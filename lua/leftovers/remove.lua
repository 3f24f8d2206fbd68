-- Removes garbage, if all that the verdict rests on still reads the same. For a full server, which refuses
-- MULTI, but takes deletes from a script, and behind them other writes.
--   KEYS[1..] all keys that are read and written
--   ARGV[1] the number of looks
--   ARGV[2..] of each look its digest and its commands, as commands() has them; then the commands that
--     remove, the deletes first
-- Returns 1, or 0 if something reads otherwise; then nothing was changed.
--@include commands
local at = 2
for _ = 1, tonumber(ARGV[1]) do
  local replies, after = commands(ARGV, at + 1)
  if digest(replies) ~= ARGV[at] then
    return 0
  end
  at = after
end
commands(ARGV, at)
return 1
