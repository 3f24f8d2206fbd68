-- Writes messages that a group has set aside into their streams again, for this group alone.
-- KEYS: meta, due index, layout mark, notifications, tracking, dead, deadlines, the streams, the
-- rings of the groups.
-- ARGV: layout mark, queue, ttl in ms, the group, the caller's `joined`, how many streams follow,
-- and the place of the message for each of them (at most 100).
-- Returns how many messages were revived. If the caller does not know all groups, this script
-- changes nothing, and returns { joined, group, ... }: the queue's `joined` and all its groups.
--@include upkeep
local notifications, tracking, dead, deadlines = KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local group, width = ARGV[4], tonumber(ARGV[6])
local facts = redis.pcall('HMGET', meta, 'mark', 'span', 'joined', 'namespace')
local problem, marked, alive = refuse_queue(facts, facts[4])
local joined, span = facts[3] or '0', nil
if not problem then
  span = span_of(facts[2])
  joined_of(facts[3])
  problem = unbelieved
end
if not problem and joined ~= ARGV[5] then
  return with_groups({ joined })
end
problem = problem
  or refuse_key('HLEN', dead, 'messages set aside')
  or refuse_key('HLEN', tracking, 'tracking ids')
  or refuse_key('XLEN', notifications, 'notifications')
problem = problem or refuse_key('ZCARD', deadlines, 'an index of deadlines')
for i = 8, #KEYS do
  local is_ring = i > 7 + width
  problem = problem or refuse_key(is_ring and 'ZCARD' or 'XLEN', KEYS[i], is_ring and 'the ring of a group' or 'a stream')
end
if problem then
  return problem
end
local revived, wakes = 0, false
for i = 1, width do
  local place = ARGV[6 + i]
  local number = string.match(place, '^(-?%d+):')
  local parts = parts_of(redis.call('HGET', dead, place) or '')
  if parts then
    local entry, tracked, deadline = {}, nil, nil
    for j = 4, #parts, 2 do
      -- It may have been revived before: the name of that group is replaced.
      if parts[j] ~= 'ws:group' then
        entry[#entry + 1], entry[#entry + 2] = parts[j], parts[j + 1]
        tracked = parts[j] == 'ws:tracking' and parts[j + 1] or tracked
        deadline = parts[j] == 'ws:deadline' and string.match(parts[j + 1], '^%d+$') or deadline
      end
    end
    if number ~= '-1' and #KEYS > 8 + width then
      -- For this group alone: the other groups have done their work.
      entry[#entry + 1], entry[#entry + 2] = 'ws:group', group
    end
    local id = redis.pcall('XADD', KEYS[7 + i], '*', unpack(entry))
    if is_error(id) then
      return id
    end
    redis.call('HDEL', dead, place)
    if tracked then
      redis.call('HSETNX', tracking, tracked, number .. ':' .. id)
    end
    if deadline and number ~= '-1' then
      redis.call('ZADD', deadlines, deadline, deadline_member(number, id, tracked))
    end
    span = math.max(span, number + 1)
    for j = 8 + width, #KEYS do
      wakes = ring_in(KEYS[j], number) or wakes
    end
    if wakes then
      notify(notifications, number)
    end
    revived = revived + 1
  end
end
if revived > 0 then
  redis.call('HSET', meta, 'span', whole(span))
  keep_alive(marked, alive)
end
return revived
