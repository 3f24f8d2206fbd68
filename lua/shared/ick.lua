--@library
-- The part that scripts on an Ick share: redis-ick's own layout, ick.v1, and the keys beside it.
--   KEYS[1] the version, a string: ick.v1
--   KEYS[2] the producer set, a sorted set: member -> score
--   KEYS[3] the consumer set, a sorted set: member -> score, of what is reserved
-- Scripts that touch all of it: KEYS[4] held, a string; KEYS[5] attempts, KEYS[6] seen, KEYS[7] dead,
-- hashes: see the catalogue. Scripts on the dead alone: KEYS[4] dead, a hash: member -> history, JSON that
-- begins with the score.
--@include layout
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
      return refusal(size, KEYS[i], 'does not hold a set of an Ick')
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

-- Adds score, member, score, member, ... to the producer set; the lower score wins.
-- Returns { new members, members whose score became lower }, or an error reply.
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

-- The server's time in seconds with fractions, as the score of each member from the first one in ARGV on:
-- returns score, member, score, member, ...
local function with_time(first)
  local clock = redis.call('TIME')
  local score, list = string.format('%d.%06d', clock[1], clock[2]), {}
  for i = first, #ARGV do
    list[#list + 1] = score
    list[#list + 1] = ARGV[i]
  end
  return list
end

-- Refuses whatever is no Ick, as refuse(false), and whatever foreign stands at a key beside it.
local function refuse_all()
  local problem = refuse(false) or refuse_key('STRLEN', KEYS[4], 'the reservation of an Ick')
  for i = 5, 7 do
    problem = problem or refuse_key('HLEN', KEYS[i], 'the attempts or the dead members of an Ick')
  end
  return problem
end

-- Refuses whatever is no Ick, as refuse(create), and whatever foreign stands in the place of its dead.
local function refuse_grave(create)
  return refuse_key('HLEN', KEYS[4], 'the dead members of an Ick') or (refuse(create))
end
