-- Deletes messages whose deadline has passed, for every group, unless a consumer has them in hand.
-- The script also clears members of the index whose messages have gone.
-- KEYS: meta, tracking, deadlines, then state, returned and delayed of each group, then the stream
-- of each message.
-- ARGV: the most to delete, how many groups, their names, then for each message its member of the
-- index, its stream's number and its entry's id.
-- Returns { how many were deleted or cleared, how many were seen in a consumer's hands, for how many ms
-- the oldest of the others has been garbage }. A message is garbage from its deadline on, or from when
-- it was written if that was later.
--@include upkeep
local tracking, deadlines = KEYS[2], KEYS[3]
local limit, width = tonumber(ARGV[1]), tonumber(ARGV[2])
local OWNER = 'workstealing:returned'
local problem, exists = refuse_meta()
problem = problem
  or refuse_key('HLEN', tracking, 'tracking ids')
  or refuse_key('ZCARD', deadlines, 'an index of deadlines')
for i = 4, 3 + 3 * width do
  local is_state = i % 3 == 1
  problem = problem or refuse_key(is_state and 'HLEN' or 'ZCARD', KEYS[i], 'what belongs to a group')
end
for i = 4 + 3 * width, #KEYS do
  problem = problem or refuse_key('XLEN', KEYS[i], 'a stream of a shuffle queue')
end
if problem then
  return problem
end
if not exists then
  return { 0, 0, 0 }
end
local at, dropped, in_hand, oldest = now(), 0, 0, 0
local named = {}
for i = 1, width do
  named[ARGV[2 + i]] = true
end

-- Returns for each group what an entry is to it: 'pending', or 'waiting' if it was never delivered. Nil
-- if a consumer has the entry in hand.
local function standings(stream, readers, id)
  local found = {}
  for name in pairs(readers) do
    -- This may be a group that is newer than the caller's look.
    local pending = not named[name] and redis.call('XPENDING', stream, name, id, id, 1)[1]
    if pending and pending[2] ~= OWNER then
      return nil
    end
  end
  for i = 1, width do
    local group = ARGV[2 + i]
    local reader = readers[group]
    if not reader or is_after(id, reader['last-delivered-id']) then
      found[i] = 'waiting'
    else
      local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
      if pending and pending[2] ~= OWNER then
        return nil
      end
      found[i] = pending and 'pending'
    end
  end
  return found
end

for i = 4 + 3 * width, #KEYS do
  local stream, base = KEYS[i], 3 + width + 3 * (i - 4 - 3 * width)
  local member, number, id = ARGV[base], ARGV[base + 1], ARGV[base + 2]
  local deadline = redis.call('ZSCORE', deadlines, member)
  if dropped < limit and deadline and tonumber(deadline) <= at then
    local entry = redis.call('XRANGE', stream, id, id)[1]
    local stand = entry and standings(stream, readers_of(stream), id)
    if entry and not stand then
      in_hand = in_hand + 1
    else
      oldest = math.max(oldest, at - math.max(deadline, string.match(id, '^%d+')))
    end
    if not entry then
      redis.call('ZREM', deadlines, member)
      dropped = dropped + 1
    elseif stand then
      local only = own_of(entry[2])
      for j = 1, width do
        local group, first = ARGV[2 + j], 4 + 3 * (j - 1)
        if stand[j] == 'pending' then
          redis.call('XACK', stream, group, id)
          redis.call('ZREM', KEYS[first + 1], number .. ':' .. id)
          redis.call('ZREM', KEYS[first + 2], number .. ':' .. id)
        end
        if stand[j] and (not only or only == group) then
          -- A counter that is none stops no work: stats() refuses it.
          redis.pcall('HINCRBY', KEYS[first], 'overdue', 1)
        end
      end
      delete_entry(stream, tracking, deadlines, number, id, entry[2])
      redis.call('ZREM', deadlines, member)
      dropped = dropped + 1
    end
  end
end
return { dropped, in_hand, oldest }
