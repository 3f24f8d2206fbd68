--@library
-- The facts, the rings and the place in the due index of a shuffle queue, for all of its scripts.
--   KEYS[1] meta, a hash: mark, namespace, span, joined, groups, group:<G>, back:<G>, plan:<G>,
--     turns:<G>
-- Scripts by which a queue is in use begin with refuse_queue() and end with keep_alive(): see
-- shared/queue_place.lua for the KEYS and ARGV of these.
--@include clock
--@include layout
--@include values
--@include stored
--@include queue_place
--@include notify

-- The value of `mark` in a queue's meta.
local QUEUE_VERSION = '1'
local meta = KEYS[1]

-- How many streams a queue has at most: the bound of span, and of every number of a stream.
local MOST_STREAMS = 4096

-- The numbers in meta, of the texts that it has there.
local function span_of(text)
  return stored(meta, 'span', text, 0, MOST_STREAMS, 0)
end

local function joined_of(text)
  return stored(meta, 'joined', text, 0, MOST_STORED, 0)
end

local function groups_of(text)
  return stored(meta, 'groups', text, 0, MOST_STORED, 0)
end

-- The number of a stream that stands under a key.
local function number_of(key, text)
  return stored(key, 'the number of a stream', text, -1, MOST_STREAMS - 1)
end

-- Splits a member `number:entry id`, or more behind another colon. Returns the number and the id as texts; or else sets `unbelieved`.
local function place_of(key, member)
  local number, id = string.match(member, '^(-?%d+):(%d+%-%d+)')
  if not id or #id > 41 then
    disbelieve(key, 'the place of a message', member, 'the number of a stream and an entry id')
    return nil
  end
  number_of(key, number)
  return number, id
end

-- Refuses facts, which begin with the mark, that are no queue's. reads: whether the script only
-- reads. Returns an error reply, or nil; then the second value says whether it may only read.
local function refuse(facts, reads)
  if facts.err then
    return refusal(facts, meta, 'does not hold the facts of a shuffle queue')
  end
  if facts[1] and facts[1] ~= QUEUE_VERSION then
    return refuse_version(meta, facts[1], QUEUE_VERSION, reads)
  end
end

-- Refuses a foreign queue, a foreign namespace, and a queue of another one. facts: of the queue,
-- the mark first; named: the namespace that they name, if any. Returns an error reply, or nil, what
-- the layout mark says, and the entry.
local function refuse_queue(facts, named)
  local problem = refuse(facts)
  if problem then
    return problem
  end
  return refuse_place(named)
end

-- The names of the groups that have ever read, after the present items of a list.
local function with_groups(list)
  local found = redis.call('HKEYS', KEYS[1])
  for i = 1, #found do
    local group = string.match(found[i], '^group:(.*)$')
    if group then
      list[#list + 1] = group
    end
  end
  return list
end

-- Puts a stream into a ring. is_empty: whether the ring is known to be empty. Returns whether it was
-- empty: then this script must wake the sleeping readers. Otherwise the plan of the ring no longer holds
-- and is removed; an empty ring has none.
local function ring_in(ring, number, is_empty)
  if redis.call('ZADD', ring, 'NX', number, number) == 0 then
    return false
  end
  if is_empty or redis.call('ZCARD', ring) == 1 then
    return true
  end
  -- The ring's key is `...ring:G` where that of the facts is `...meta`.
  redis.call('HDEL', KEYS[1], 'plan:' .. string.sub(ring, #KEYS[1] + 2))
  return false
end

-- Lets a pending entry be served again, which already belongs to the consumer workstealing:returned.
-- Each nack and each recovery ends with this.
-- Arguments: the keys of the group and of the notifications; the group; the stream's number; the
-- entry's id; the ms at which it returns, nil for now. Returns whether notify() is to be called. It is
-- called for a delayed entry too, so that sleeping readers learn until when they may sleep.
local function give_back(ring, returned, delayed, group, number, id, at)
  redis.call('HSET', meta, 'back:' .. group, 1)
  -- A plan does not know of entries that return.
  redis.call('HDEL', meta, 'plan:' .. group)
  if at then
    redis.call('ZADD', delayed, whole(at), number .. ':' .. id)
    return true
  end
  redis.call('ZADD', returned, number, number .. ':' .. id)
  return ring_in(ring, number)
end

-- Whether a pending entry is still the delivery that a consumer means: then for how many ms it has been
-- held, or else false. The consumer's name alone does not tell: the entry may have been recovered, and
-- delivered to the same consumer again.
local function is_held(stream, reader, id, consumer, attempts)
  local found = redis.pcall('XPENDING', stream, reader, id, id, 1)
  if is_error(found) or not found[1] then
    return false
  end
  return found[1][2] == consumer and found[1][4] == tonumber(attempts) and found[1][3]
end
