-- What every script that changes a volatile hash shares, besides volatile.lua.
--   KEYS[3] the due index of the hash's index shard, a sorted set: key of the hash -> the earliest
--           moment at which it may have garbage (never later than its earliest deadline)
--   KEYS[4] the layout mark of that index shard, a string
--   ARGV[1] the mark that the caller was written for
--@include volatile
local due, mark = KEYS[3], KEYS[4]

local function layout_error(key, why)
  return redis.error_reply('WSLAYOUT the key ' .. key .. ' ' .. why)
end

-- Refuses a foreign layout and wrong types before anything is written, and drops the deadlines of a
-- hash that is gone. Returns an error reply, or nil when the script may go on.
local function refuse()
  local found = redis.pcall('GET', mark)
  if type(found) == 'table' then
    return layout_error(mark, 'does not hold a layout mark')
  end
  if found and found ~= ARGV[1] then
    return layout_error(mark, 'says ' .. found .. ' where ' .. ARGV[1] .. ' was expected')
  end
  local size = redis.pcall('HLEN', hash)
  if type(size) == 'table' then
    return size
  end
  local held = redis.pcall('ZCARD', deadlines)
  if type(held) == 'table' then
    return layout_error(deadlines, 'does not hold the deadlines of a volatile hash')
  end
  if type(redis.pcall('ZCARD', due)) == 'table' then
    return layout_error(due, 'does not hold a due index')
  end
  if not found then
    local reply = redis.pcall('SET', mark, ARGV[1])
    if reply.err then
      return reply
    end
  end
  if size == 0 and held > 0 then
    redis.call('UNLINK', deadlines)
  end
end

-- Makes the due index find this hash at that moment or before. The first write of a script that sets
-- deadlines, so that a full server refuses it before anything is changed. Returns an error or nil.
local function schedule(at)
  local reply = redis.pcall('ZADD', due, 'LT', string.format('%.0f', at), hash)
  if type(reply) == 'table' then
    return reply
  end
end

local function set_deadline(fields, at)
  local score, members = string.format('%.0f', at), {}
  for i, field in ipairs(fields) do
    members[#members + 1] = score
    members[#members + 1] = field
    if #members == 4000 or i == #fields then
      redis.call('ZADD', deadlines, unpack(members))
      members = {}
    end
  end
end

local function clear_deadline(fields)
  in_runs(1, #fields, function(first, last)
    redis.call('ZREM', deadlines, unpack(fields, first, last))
  end)
end

-- Deletes fields and their deadlines; returns how many fields there were.
local function remove(fields)
  local removed = 0
  in_runs(1, #fields, function(first, last)
    removed = removed + redis.call('HDEL', hash, unpack(fields, first, last))
  end)
  clear_deadline(fields)
  return removed
end

-- Forgets a hash that has no deadlines left.
local function tidy()
  if redis.call('EXISTS', deadlines) == 0 then
    redis.call('ZREM', due, hash)
  end
end

-- Deletes those of the fields that have expired, so that what follows meets only live ones. Returns
-- the fields that still have a deadline.
local function drop_past(fields)
  local lasting, gone, at = {}, {}, nil
  for i, deadline in pairs(deadlines_of(fields)) do
    if deadline then
      at = at or now()
      if is_past(deadline, at) then
        gone[#gone + 1] = fields[i]
      else
        lasting[#lasting + 1] = fields[i]
      end
    end
  end
  if #gone > 0 then
    remove(gone)
  end
  return lasting
end

-- Sets the fields of a list field, value, field, value, ...; returns how many are new.
local function set_values(list)
  local added = 0
  in_runs(1, #list, function(first, last)
    added = added + redis.call('HSET', hash, unpack(list, first, last))
  end)
  return added
end

local function fields_of(list)
  local fields = {}
  for i = 1, #list, 2 do
    fields[#fields + 1] = list[i]
  end
  return fields
end
