--@library
-- The readers of a stream, and what its upkeep needs: whether an entry is needed, and its deletion.
--@include queue
--@include message

-- Compares integers as texts of digits, because ids are longer than a Lua number can be exact.
local function is_more(a, b)
  if #a ~= #b then
    return #a > #b
  end
  return a > b
end

local function is_after(id, other)
  local ms, sequence = string.match(id, '^(%d+)-(%d+)$')
  local other_ms, other_sequence = string.match(other, '^(%d+)-(%d+)$')
  if ms ~= other_ms then
    return is_more(ms, other_ms)
  end
  return is_more(sequence, other_sequence)
end

-- Returns the groups that read a stream: name -> what XINFO says of it, as a table. Empty if there is
-- no stream.
local function readers_of(stream)
  local readers = {}
  local found = redis.pcall('XINFO', 'GROUPS', stream)
  if found.err then
    return readers
  end
  for _, flat in ipairs(found) do
    local reader = {}
    for i = 1, #flat, 2 do
      reader[flat[i]] = flat[i + 1]
    end
    readers[reader.name] = reader
  end
  return readers
end

-- Whether some group will need every entry of a stream, because it is registered and has not begun to
-- read. number: of the stream. All groups read the legacy stream under that stream's own name; other
-- groups of it, if there are any, belong to other programs and may need everything.
local function awaits_readers(stream, number, readers)
  if number == '-1' then
    return not readers[stream] or next(readers, next(readers)) ~= nil
  end
  local groups = with_groups({})
  for i = 1, #groups do
    if not readers[groups[i]] then
      return true
    end
  end
  return #groups == 0
end

-- Whether some group has not been given an entry, or has not acknowledged it.
local function is_needed(stream, readers, id)
  for name, reader in pairs(readers) do
    if is_after(id, reader['last-delivered-id']) or #redis.call('XPENDING', stream, name, id, id, 1) > 0 then
      return true
    end
  end
  return false
end

-- Refuses a foreign queue. reads: whether the script only reads. Returns the error reply or nil, and
-- what the mark says, false if there is no queue at all.
local function refuse_meta(reads)
  local facts = redis.pcall('HMGET', meta, 'mark')
  return (refuse(facts, reads)), facts[1]
end

-- Deletes an entry that nobody needs, with its tracking id and its deadline. fields: its fields and
-- values.
local function delete_entry(stream, tracking, deadlines, number, id, fields)
  redis.call('XDEL', stream, id)
  local _, deadline, tracked = own_of(fields)
  if tracked and redis.call('HGET', tracking, tracked) == number .. ':' .. id then
    redis.call('HDEL', tracking, tracked)
  end
  if deadline then
    redis.call('ZREM', deadlines, deadline_member(number, id, tracked))
  end
end

-- Returns the fields and values of an entry, nil if it has gone.
local function fields_of(stream, id)
  local found = redis.call('XRANGE', stream, id, id)
  return found[1] and found[1][2]
end

-- A text with its length before it, so that parts with any bytes can be told apart.
local function sized(text)
  return #text .. ':' .. text .. ','
end

-- Sets a pending message aside for its group. count: how often it was delivered; since: when for the last
-- time, in ms; reader: the name under which the group reads the stream. Its first write is one that a full
-- server allows.
local function bury(dead, returned, delayed, tracking, deadlines, stream, reader, number, id, count, since, at, fields)
  local member = number .. ':' .. id
  redis.call('XACK', stream, reader, id)
  redis.call('ZREM', returned, member)
  redis.call('ZREM', delayed, member)
  local parts = { sized(whole(count)), sized(whole(since)), sized(whole(at)) }
  for _, part in ipairs(fields) do
    parts[#parts + 1] = sized(part)
  end
  redis.call('HSET', dead, member, table.concat(parts))
  local readers = readers_of(stream)
  if not awaits_readers(stream, number, readers) and not is_needed(stream, readers, id) then
    delete_entry(stream, tracking, deadlines, number, id, fields)
  end
end
