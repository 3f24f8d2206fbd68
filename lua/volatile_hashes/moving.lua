--@library
-- The part that the scripts share which move a hash to another keeper of its deadlines: the mark.
--@include layout

-- Marks an index shard, so that processes which do not know of the move notice.
--   deadlines: any of its keys, which is not changed; mark: the index shard's
--   staying: the marks that stay, the first for an index shard without any
--   moving: the mark that takes the place of others; replaced: those others
-- Returns an error reply, or nil.
local function mark_moving(deadlines, mark, staying, moving, replaced)
  local found = redis.pcall('GET', mark)
  local problem = refuse_mark(mark, found, staying .. ' ' .. replaced, 'a layout mark')
  if problem then
    return problem
  end
  -- A full server refuses some writes as a script's first, and allows them behind another write.
  redis.call('ZREM', deadlines, '')
  if not found then
    redis.call('SET', mark, first_mark(staying))
  elseif is_among(found, replaced) then
    redis.call('SET', mark, moving)
  end
end
