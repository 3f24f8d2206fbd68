-- Gives an index shard another mark, at the end of a move.
--   KEYS[1] mark
--   KEYS[2] the due index, if it must be empty: no writer of before the move may fill it again
--   ARGV[1] the mark after
--   ARGV[2] the marks that it replaces
-- Returns 1 if the index shard has it now, else 0.
--@include layout
local found = redis.call('GET', KEYS[1])
if found and found ~= ARGV[1] and not is_among(found, ARGV[2]) then
  return layout_error(KEYS[1], 'says ' .. found .. ' where ' .. ARGV[1] .. ' was expected')
end
if KEYS[2] and redis.call('EXISTS', KEYS[2]) == 1 then
  return 0
end
-- As in layout/change: where memory is full SET alone is refused.
redis.call('UNLINK', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1])
return 1
