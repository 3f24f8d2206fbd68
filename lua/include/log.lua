-- What every script on a log shares: the facts that its `meta` holds.
--   KEYS[1] meta, a hash: mark, block, next, first, kept, epoch, joined, group:<G>, written:<Q>
--@include log_version
--@include layout_error
--@include is_error
--@include whole
local meta = KEYS[1]

-- Refuses facts, which begin with the mark, that are no log's. Returns an error reply or nil.
local function refuse(facts)
  if facts.err then
    return layout_error(meta, 'does not hold the facts of a log')
  end
  if facts[1] then
    if facts[1] ~= LOG_VERSION then
      return layout_error(meta, 'says ' .. facts[1] .. ' where ' .. LOG_VERSION .. ' was expected')
    end
  elseif redis.call('EXISTS', meta) == 1 then
    return layout_error(meta, 'does not hold the facts of a log')
  end
end
