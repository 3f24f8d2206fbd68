-- What scripts have in common that show that a queue is in use: refuse_queue(), and then keep_alive().
--   KEYS and ARGV as of shuffle_queue_keep
--@include shuffle_queue
--@include shuffle_queue_keep
--@include refuse_mark

-- Refuses a foreign queue, a foreign namespace, and a queue of another one. facts: of the queue, the mark
-- first; named: the namespace that they name, if any. Returns an error reply, or nil, what the layout
-- mark says, and the entry.
local function refuse_queue(facts, named)
  local due, mark = KEYS[2], KEYS[3]
  local problem = refuse(facts)
  if problem then
    return problem
  end
  if is_elsewhere(named, due) then
    return elsewhere_error(named, due)
  end
  is_named = named
  local found = redis.pcall('GET', mark)
  problem = refuse_mark(mark, found, ARGV[1], 'a layout mark')
  if problem then
    return problem
  end
  local at = redis.pcall('ZSCORE', due, ARGV[2])
  if is_error(at) then
    return layout_error(due, 'does not hold a due index')
  end
  return nil, found, at
end
