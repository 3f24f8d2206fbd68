--@library
-- Keys of ours that hold something foreign, and the versions of layouts: errors, refusals, the opening.

-- The error reply about a key of ours that holds something foreign, or a newer layout.
local function layout_error(key, why)
  return redis.error_reply('WSLAYOUT the key ' .. key .. ' ' .. why)
end

-- The error reply to a command on a key of ours that has failed: about the key, if that holds something foreign; else
-- the server's own, of a command that the user may not run for instance.
local function refusal(reply, key, why)
  -- Not a text in fakeredis.
  if reply.err and not string.find(tostring(reply.err), 'WRONGTYPE', 1, true) then
    return reply
  end
  return layout_error(key, why)
end

-- A key that holds something else than it should.
-- command: one that answers a number where the key is right, or there is none. Returns an error reply or nil.
local function refuse_key(command, key, what)
  local reply = redis.pcall(command, key)
  if type(reply) == 'table' then
    --@include layout
    return refusal(reply, key, 'does not hold ' .. what)
  end
end

-- Whether a mark is one of those that the caller names, with a space between two. Of a namespace that
-- moves to another backend, some index shards have the mark before, and others the one after.
local function is_among(found, marks)
  return found == marks or string.find(' ' .. marks .. ' ', ' ' .. found .. ' ', 1, true)
end

-- The mark, of those that the caller names, that an index shard without any is given: the first.
local function first_mark(marks)
  return string.match(marks, '^%S*')
end

-- The layouts that keys of ours name, against those that the caller was written for.
-- found: the reply of redis.pcall() to a read of the key; expected: a mark, or some; what: what the key
-- should hold. Returns an error reply; nil if the key holds nothing, or what was expected.
local function refuse_mark(key, found, expected, what)
  if found and found ~= expected then
    --@include layout
    if type(found) == 'table' then
      return refusal(found, key, 'does not hold ' .. what)
    end
    return not is_among(found, expected) and layout_error(key, 'says ' .. found .. ' where ' .. first_mark(expected) .. ' was expected')
      or nil
  end
end

-- The rule of versions, as structures/layout.py has it for a layout with a key of its own. Here it is
-- for a structure whose facts, a hash, hold the version: as the field mark, and from the next version
-- on readable_from and writable_from.
-- found: what mark says; own: the version of this release; reads: whether the caller only reads.
-- Returns an error reply, or nil; then the second value says whether the caller may only read.
local function refuse_version(key, found, own, reads)
  local from = redis.call('HMGET', key, 'readable_from', 'writable_from')
  local readable, writable = tonumber(from[1] or nil), tonumber(from[2] or nil)
  if not (readable and writable and tonumber(found)) then
    return layout_error(key, 'says ' .. found .. ' where ' .. own .. ' was expected')
  end
  local is_readable, is_writable = readable <= tonumber(own), writable <= tonumber(own)
  if not is_readable or not (reads or is_writable) then
    return layout_error(
      key,
      'has layout version ' .. found .. ', which this release (version ' .. own .. ') '
        .. (is_readable and 'may read but not write' or 'cannot read') .. ': upgrade workstealing'
    )
  end
  return nil, not is_writable
end

-- Reads a layout, and writes it down if there is none yet.
-- layout: a hash; new: fields and values of a new layout; none if it is only to be read. Returns field, value, ... of the
-- layout that holds, or an error reply.
local function open_layout(layout, new)
  local found = redis.pcall('HGETALL', layout)
  if found.err then
    return refusal(found, layout, 'does not hold a layout')
  end
  if #found > 0 or #new == 0 then
    return found
  end
  local reply = redis.pcall('HSET', layout, unpack(new))
  return type(reply) == 'table' and reply or new
end
