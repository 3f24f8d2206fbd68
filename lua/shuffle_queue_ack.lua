-- Says that messages are done; one that no group needs any more is deleted.
-- KEYS: meta, tracking, returned, delayed, legacy stream, the streams.
-- ARGV: group, then for each message: the place of its stream among these (0: legacy), its stream's
--   number, its entry's id, its tracking id or ''.
-- Returns how many were pending.
--@include shuffle_queue
local tracking, returned, delayed, legacy = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group = ARGV[1]
local facts = redis.pcall('HMGET', meta, 'mark', 'groups', 'back:' .. group)
local problem = refuse(facts)
if problem then
  return problem
end
local groups

local function is_after(id, other)
  local ms, sequence = string.match(id, '^(%d+)-(%d+)$')
  local other_ms, other_sequence = string.match(other, '^(%d+)-(%d+)$')
  ms, other_ms = tonumber(ms), tonumber(other_ms)
  return ms > other_ms or ms == other_ms and tonumber(sequence) > tonumber(other_sequence)
end

-- Says whether every group has had an entry and none has it pending.
local function is_done(stream, id)
  groups = groups or groups_of()
  local infos, reached = redis.call('XINFO', 'GROUPS', stream), {}
  for i = 1, #infos do
    local name, last
    for j = 1, #infos[i], 2 do
      if infos[i][j] == 'name' then
        name = infos[i][j + 1]
      elseif infos[i][j] == 'last-delivered-id' then
        last = infos[i][j + 1]
      end
    end
    if is_after(id, last) or #redis.call('XPENDING', stream, name, id, id, 1) > 0 then
      return false
    end
    reached[name] = true
  end
  for i = 1, #groups do
    if not reached[groups[i]] then
      return false
    end
  end
  return true
end

-- Each message's stream, before the first is written to.
for i = 2, #ARGV, 4 do
  local place = 5 + ARGV[i]
  local stream = KEYS[place]
  if is_error(redis.pcall('XLEN', stream)) then
    return layout_error(stream, 'does not hold a stream of a shuffle queue')
  end
end
local acked = 0
for i = 2, #ARGV, 4 do
  local place = 5 + ARGV[i]
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
    local is_last
    if is_legacy then
      -- Its other groups, if it has any, are not ours.
      is_last = #redis.call('XINFO', 'GROUPS', stream) == 1
    else
      is_last = facts[2] == '1' or is_done(stream, id)
    end
    if is_last then
      redis.call('XDEL', stream, id)
      if tracked ~= '' and redis.call('HGET', tracking, tracked) == member then
        redis.call('HDEL', tracking, tracked)
      end
    end
  end
end
return acked
