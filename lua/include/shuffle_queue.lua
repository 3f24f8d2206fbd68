-- What every script on a shuffle queue shares: the facts that its `meta` holds.
--   KEYS[1] meta, a hash: mark, namespace, span, joined, groups, group:<G>, back:<G>, plan:<G>, turns:<G>
--@include shuffle_queue_version
--@include layout_error
--@include is_error
--@include whole
--@include shuffle_queue_namespace
--@include shuffle_queue_ring
local meta = KEYS[1]

-- Refuses facts, which begin with the mark, that are no queue's. Returns an error reply or nil.
local function refuse(facts)
  if facts.err then
    return layout_error(meta, 'does not hold the facts of a shuffle queue')
  end
  if facts[1] and facts[1] ~= QUEUE_VERSION then
    return layout_error(meta, 'says ' .. facts[1] .. ' where ' .. QUEUE_VERSION .. ' was expected')
  end
end

local function elsewhere_error(named, due)
  return layout_error(
    meta,
    'belongs to the namespace ' .. named .. ' and not to ' .. namespace_of(due) .. ': give namespace=' .. named
  )
end
