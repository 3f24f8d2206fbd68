--@library
-- The part that scripts on a time shard share.
--@include layout
--@include clock
--@include stored

-- Refuses another layout and foreign keys before anything is written.
-- mark: a string: version:time shards:period in ms; expected: the mark that the caller was written for;
-- keys: the mark and others; kinds: the types that the others must have, if they exist. Returns an error
-- reply, or nil; then the second value says whether there is a mark.
local function refuse(mark, expected, keys, kinds)
  local found = redis.pcall('GET', mark)
  if type(found) == 'table' then
    return refusal(found, mark, 'does not hold the mark of a time shard')
  end
  if found and found ~= expected then
    return layout_error(mark, 'says ' .. found .. ' (version:time shards:period in ms) where '
      .. expected .. ' was expected: give every process of the queue the same')
  end
  for i, kind in ipairs(kinds) do
    local is = redis.call('TYPE', keys[i + 1])
    is = type(is) == 'table' and is.ok or is
    if is ~= kind and is ~= 'none' then
      return layout_error(keys[i + 1], 'holds a ' .. is .. ' where a ' .. kind
        .. ' of a time shard was expected')
    end
  end
  return nil, found and true
end

-- due_at(ms, from_now): a due time as a score: whole milliseconds since the epoch, not before it.
local function due_at(ms, from_now)
  local due = tonumber(ms)
  if from_now == '1' then
    due = due + now()
  end
  return string.format('%.0f', math.max(0, due))
end

-- The history of a message is a text: "takes released due extended consumer". takes and released: how
-- often it was taken and released; extended: until when its last lease was extended, in ms, or 0.
-- read_history(text, key) returns takes, released, due, consumer and extended, as texts; nil if nobody has
-- taken the message. Of a text that cannot be believed it returns false, and sets `unbelieved`.
local function read_history(text, key)
  if text then
    local takes, released, due, extended, consumer =
      string.match(text, '^(%d+) (%d+) (%d+) (%d+) (.*)$')
    if not takes or math.max(#takes, #released, #due, #extended) > 16 or tonumber(released) > tonumber(takes) then
      disbelieve(key, 'the history of a message', text, 'its takes, releases, due time, extension and consumer')
      return false
    end
    return takes, released, due, consumer, extended
  end
end

-- Whether a moment that a sorted set has in ms can be believed; sets `unbelieved` if not.
local function is_moment(key, score)
  local before = unbelieved
  stored(key, 'a time in ms', score, 0, MOST_STORED)
  return unbelieved == before
end

-- write_history() writes what read_history() reads. Without `extended` an extension ends.
local function write_history(takes, released, due, consumer, extended)
  return string.format('%.0f %.0f %.0f %.0f %s', takes, released, due, extended or 0, consumer)
end
