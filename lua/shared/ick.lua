--@library
-- The part that scripts on an Ick share: redis-ick's own layout, ick.v1, and the keys beside it.
--   version: a string: ick.v1
--   pset: the producer set, a sorted set: member -> score
--   cset: the consumer set, a sorted set: member -> score, of what is reserved
--   held: a string; attempts, seen, dead, terms: hashes; waiting: a sorted set: see the catalogue
--@include layout
local IS_ICK = 'ick.v1'

-- Refuses whatever is no Ick before anything is written, and makes one where there is nothing if
-- that is wanted. Returns an error reply, or nil; then the second value says whether there is an Ick.
local function refuse(version, pset, cset, create)
  local found = redis.pcall('GET', version)
  local problem = refuse_mark(version, found, IS_ICK, 'the version of an Ick')
  if problem then
    return problem
  end
  for _, key in ipairs({ pset, cset }) do
    local size = redis.pcall('ZCARD', key)
    if type(size) == 'table' then
      return refusal(size, key, 'does not hold a set of an Ick')
    end
    if size > 0 and not found then
      return layout_error(key, 'holds members, but there is no version of an Ick at ' .. version)
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

-- Adds score, member, score, member, ... to the producer set; the lower score wins.
-- Returns { new members, members whose score became lower }, or an error reply.
local function add_pairs(version, pset, cset, list)
  local problem = refuse(version, pset, cset, true)
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

-- The server's time in seconds with fractions, as the score of each of the arguments, which are members,
-- from the first one on: returns score, member, score, member, ...
local function with_time(args, first)
  local clock = redis.call('TIME')
  local score, list = string.format('%d.%06d', clock[1], clock[2]), {}
  for i = first, #args do
    list[#list + 1] = score
    list[#list + 1] = args[i]
  end
  return list
end

-- How many members wait until they have rested; an error reply for a foreign key.
local function count_waiting(waiting, terms)
  local count = redis.pcall('ZCARD', waiting)
  if type(count) == 'table' then
    return refusal(count, waiting, 'does not hold the waiting members of an Ick')
  end
  return count > 0 and refuse_key('HLEN', terms, 'the terms of an Ick\'s waiting members') or count
end

-- Refuses whatever is no Ick, as refuse(false), and whatever foreign stands at a key beside it.
local function refuse_all(version, pset, cset, held, attempts, seen, dead, waiting, terms)
  local problem = refuse(version, pset, cset, false) or refuse_key('STRLEN', held, 'the reservation of an Ick')
  for _, key in ipairs({ attempts, seen, dead }) do
    problem = problem or refuse_key('HLEN', key, 'the attempts or the dead members of an Ick')
  end
  return problem
    or refuse_key('ZCARD', waiting, 'the waiting members of an Ick')
    or refuse_key('HLEN', terms, 'the terms of an Ick\'s waiting members')
end

-- Refuses whatever is no Ick, as refuse(create), and whatever foreign stands in the place of its dead.
local function refuse_grave(version, pset, cset, dead, create)
  return refuse_key('HLEN', dead, 'the dead members of an Ick') or (refuse(version, pset, cset, create))
end
