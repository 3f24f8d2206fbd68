-- Collects volatile hashes: for sweeps, and for a server that is out of memory and refuses every MULTI.
--   KEYS[1] due index
--   KEYS[2..] hash and deadlines of each, all of this index shard
--   ARGV[1] the most fields to delete in all
-- Returns how many fields were deleted; how many of the hashes, counted from the first on, were looked at;
-- and the deadlines keys that hold something foreign, whose hashes were left alone. Complexity: four commands
-- for each hash whose deadlines have all passed. A full server lets a script delete, and then lets it write:
-- so the deletes come first.
--@include clock
--@include bounded
local due, room, at = KEYS[1], tonumber(ARGV[1]), now()
local by_now = string.format('%.0f', at)
local fields, looked, seen, ended, later, foreign, problem = 0, 0, {}, {}, {}, {}, nil

local function is_wrong_type(reply)
  return type(reply) == 'table' and reply.err and string.find(reply.err, 'WRONGTYPE', 1, true)
end

for i = 2, #KEYS, 2 do
  if room <= 0 then
    break
  end
  local hash, deadlines = KEYS[i], KEYS[i + 1]
  -- unpack() has its limits. A hash with more past fields stays in the due index.
  local most = math.min(room, 4000)
  local past = redis.pcall('ZRANGEBYSCORE', deadlines, '-inf', by_now, 'LIMIT', 0, most)
  local removed = past.err and past or 0
  if #past > 0 then
    removed = redis.pcall('HDEL', hash, unpack(past))
  end
  if is_wrong_type(past) then
    foreign[#foreign + 1] = deadlines
  elseif type(removed) == 'table' and not is_wrong_type(removed) then
    problem = removed
    break
  else
    seen[#seen + 1] = hash
    -- A field that was removed shows whether there is a hash.
    local is_hash = removed ~= 0 and type(removed) == 'number'
    if not is_hash and redis.call('TYPE', hash).ok ~= 'hash' then
      -- Somebody has deleted or overwritten it, and only deadlines are left.
      ended[#ended + 1] = deadlines
    else
      fields, room = fields + #past, room - #past
      if redis.call('ZCARD', deadlines) == #past then
        ended[#ended + 1] = deadlines
      else
        if #past > 0 then
          redis.call('ZREM', deadlines, unpack(past))
        end
        local next_due = tonumber(redis.call('ZRANGE', deadlines, 0, 0, 'WITHSCORES')[2])
        local left = redis.call('PTTL', hash)
        if left >= 0 then
          next_due = math.min(next_due, at + left + 1)
        end
        later[#later + 1] = string.format('%.0f', next_due)
        later[#later + 1] = hash
      end
    end
  end
  looked = looked + 1
end
for first = 1, #ended, 4000 do
  redis.call('UNLINK', unpack(ended, first, math.min(first + 3999, #ended)))
end
call_in_runs('ZREM', due, seen, 1)
call_in_runs('ZADD', due, later, 1)
return problem or { fields, looked, foreign }
