--@library
-- The part that the scripts share which move a hash to another keeper of its deadlines: the mark.
--@include layout

-- Marks the index shard of KEYS[4], so that processes which do not know of the move notice.
--   ARGV[1] the marks that stay, the first for an index shard without any
--   ARGV[2] the mark that takes the place of others; ARGV[3] those others
-- Returns an error reply, or nil.
local function mark_moving()
  local found = redis.pcall('GET', KEYS[4])
  local problem = refuse_mark(KEYS[4], found, ARGV[1] .. ' ' .. ARGV[3], 'a layout mark')
  if problem then
    return problem
  end
  -- A full server refuses some writes as a script's first, and allows them behind another write.
  redis.call('ZREM', KEYS[2], '')
  if not found then
    redis.call('SET', KEYS[4], first_mark(ARGV[1]))
  elseif is_among(found, ARGV[3]) then
    redis.call('SET', KEYS[4], ARGV[2])
  end
end
