--@library
-- The layouts that keys of ours name, against those that the caller was written for.
--@include layout_error

-- found: the reply of redis.pcall() to a read of the key; what: what the key should hold. Returns an
-- error reply; nil if the key holds nothing, or what was expected.
local function refuse_mark(key, found, expected, what)
  if type(found) == 'table' then
    return refusal(found, key, 'does not hold ' .. what)
  end
  if found and found ~= expected then
    return layout_error(key, 'says ' .. found .. ' where ' .. expected .. ' was expected')
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
