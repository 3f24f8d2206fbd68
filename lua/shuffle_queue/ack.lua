-- Notes that messages are done, and deletes those that no group needs any more.
-- KEYS: meta, tracking, returned, delayed, deadlines, legacy stream, the streams.
-- ARGV: group, then for each message: the place of its stream among these (0: legacy), its stream's
--   number, its entry's id, its tracking id or '', 1 if it has a deadline or ''.
-- Returns how many were pending.
--@include upkeep
local tracking, returned, delayed, deadlines, legacy = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local group = ARGV[1]
local facts = redis.pcall('HMGET', meta, 'mark', 'groups', 'back:' .. group)
local problem = refuse(facts)
-- With one group, the usual case, nothing is to be read.
if not problem and facts[2] ~= '1' then
  --@include queue
  groups_of(facts[2])
  problem = unbelieved
end
if problem then
  return problem
end
-- Each message's stream, and the index if it is needed, is checked before the first write.
local is_timed = false
for i = 2, #ARGV, 5 do
  local place = 6 + ARGV[i]
  local stream = KEYS[place]
  problem = problem or refuse_key('XLEN', stream, 'a stream of a shuffle queue')
  is_timed = is_timed or ARGV[i + 4] ~= ''
end
problem = problem or (is_timed and refuse_key('ZCARD', deadlines, 'an index of deadlines'))
if problem then
  return problem
end
local acked = 0
for i = 2, #ARGV, 5 do
  local place = 6 + ARGV[i]
  local stream = KEYS[place]
  local number, id, tracked = ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local is_legacy = number == '-1'
  if redis.call('XACK', stream, is_legacy and legacy or group, id) == 1 then
    acked = acked + 1
    local member = number .. ':' .. id
    if facts[3] then
      redis.call('ZREM', returned, member)
      redis.call('ZREM', delayed, member)
    end
    local is_last = not is_legacy and facts[2] == '1'
    if not is_last then
      local readers = readers_of(stream)
      is_last = not awaits_readers(stream, number, readers) and not is_needed(stream, readers, id)
    end
    if is_last then
      redis.call('XDEL', stream, id)
      if tracked ~= '' and redis.call('HGET', tracking, tracked) == member then
        redis.call('HDEL', tracking, tracked)
      end
      if ARGV[i + 4] ~= '' then
        redis.call('ZREM', deadlines, deadline_member(number, id, tracked))
      end
    end
  end
end
return acked
