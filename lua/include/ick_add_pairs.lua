-- add_pairs(list): adds score, member, score, member, ... to the producer set; the lower score wins.
-- Returns { new members, members whose score became lower }, or an error reply.
--@include ick
local function add_pairs(list)
  local problem = refuse(true)
  if problem then
    return problem
  end
  if #list == 0 then
    return { 0, 0 }
  end
  local before = redis.call('ZCARD', pset)
  local touched = redis.pcall('ZADD', pset, 'LT', 'CH', unpack(list))
  if type(touched) == 'table' then
    return touched
  end
  local new = redis.call('ZCARD', pset) - before
  return { new, touched - new }
end
