-- What every script on an Ick shares: redis-ick's own layout, ick.v1, and what stands beside it.
--   KEYS[1] the version, a string: ick.v1
--   KEYS[2] the producer set, a sorted set: member -> score
--   KEYS[3] the consumer set, a sorted set: member -> score, of what is reserved
--@include refuse_mark
local version, pset, cset = KEYS[1], KEYS[2], KEYS[3]
local IS_ICK = 'ick.v1'

-- Refuses whatever is no Ick before anything is written, and makes one where there is nothing if
-- that is wanted. Returns an error reply, or nil; then the second value says whether there is an Ick.
local function refuse(create)
  local found = redis.pcall('GET', version)
  local problem = refuse_mark(version, found, IS_ICK, 'the version of an Ick')
  if problem then
    return problem
  end
  for i = 2, 3 do
    local size = redis.pcall('ZCARD', KEYS[i])
    if type(size) == 'table' then
      return layout_error(KEYS[i], 'does not hold a set of an Ick')
    end
    if size > 0 and not found then
      return layout_error(KEYS[i], 'holds members, but there is no version of an Ick at ' .. version)
    end
  end
  if not found and create then
    local reply = redis.pcall('SET', version, IS_ICK)
    if reply.err then
      return reply
    end
  end
  return nil, found and true
end
