--@library
-- The ids by which a producer appends once: what an append finds of them, notes, and what is forgotten.
--   ids        a sorted set, of a producer: id -> the offset that it was given; and the empty text -> -1 - mark, where mark is an offset
--              below which all ids are older than the producer's time in `producers`, less the window
--   producers  a sorted set, of the log: producer -> when (ms) its ids below the mark have been known for a whole window
--   window     the longest for which a writer wants an id to be known (ms): the field `ids` of meta
-- So an id is known for a window at least and, where anybody looks, for two at most; without a time beside each of them.
--@include values
--@include layout
--@include stored

-- One script forgets no more ids than this, so that it is over soon.
local MOST_FORGOTTEN = 10000
-- unpack() has its limits.
local IDS_A_CALL = 2000

local function producer_of(meta, key)
  -- All keys begin alike: what is behind `ids:` is the producer.
  return string.sub(key, #meta + 1)
end

-- The longest window that a writer may want: 30 days, as ids.py says it.
local MOST_WINDOW_MS = 2592000000

-- The window of a log: as its writers have wanted it so far, or as this one does, if that is longer.
local function window_of(meta, wanted)
  return math.max(wanted, stored(meta, 'ids', redis.call('HGET', meta, 'ids'), 0, MOST_WINDOW_MS, 0))
end

-- What is known of a producer: { name, due, mark, tail, at }. Returns an error reply or nil, and this table.
local function look_at_producer(key, producers, name, tail, at)
  local due, mark = redis.pcall('ZSCORE', producers, name), redis.pcall('ZSCORE', key, '')
  if is_error(due) then
    --@include layout
    return refusal(due, producers, 'does not hold the producers of a log')
  end
  if is_error(mark) then
    --@include layout
    return refusal(mark, key, 'does not hold the ids of a producer of a log')
  end
  local place = mark and -1 - tonumber(mark) or 0
  if not (place >= 0 and place <= tail and place % 1 == 0) then
    disbelieve(key, 'the mark of the ids', mark, 'a whole number from ' .. whole(-1 - tail) .. ' to -1')
    place = 0
  end
  return unbelieved, { name = name, due = due and math.max(0, tonumber(due)), mark = place, tail = tail, at = at }
end

-- Whether the ids below the mark are forgotten, be they still here or not.
local function is_past(found)
  return found.due and found.due <= found.at
end

-- Removes ids that are forgotten, no more than `room`, and puts mark and time anew. Returns how many were removed.
local function forget_ids(key, producers, found, window, room)
  local many = 0
  if is_past(found) then
    many = redis.call('ZCOUNT', key, 0, '(' .. whole(found.mark))
    if many > 0 then
      -- The mark is the first of all.
      redis.call('ZREMRANGEBYRANK', key, 1, math.min(many, room))
      if many > room then
        return room
      end
    end
  end
  -- A later time is one of a clock that has been set back since.
  if not found.due or is_past(found) or found.due > found.at + window then
    -- ZADD is refused where memory is full, unless the script has written already.
    redis.call('ZREM', producers, found.name)
    redis.call('ZADD', producers, whole(found.at + window), found.name)
    if not found.due or is_past(found) then
      redis.call('ZADD', key, whole(-1 - found.tail), '')
    end
  end
  return many
end

-- Looks for ids. argv: the ids stand in it from `from` on, `many` of them, and behind them the entries: one for each id, or all of them
-- under one id. Sets in found: offsets, one for each id; fresh, the ids that are not known, each with its offset behind it; entries and
-- head, the table in which the entries to append stand behind the place `head`; count, how many they are. Returns an error reply or nil.
local function look_for_ids(key, found, argv, from, many)
  local offsets, fresh, seen, entries = {}, {}, {}, {}
  local last, past, each = from + many - 1, is_past(found), many > 1
  for start = from, last, IDS_A_CALL do
    local stop = math.min(last, start + IDS_A_CALL - 1)
    local scores = redis.call('ZMSCORE', key, unpack(argv, start, stop))
    for i = start, stop do
      local id, score = argv[i], scores[i - start + 1]
      local offset = seen[id] or score and tonumber(score)
      if offset and not seen[id] then
        if not (offset >= 0 and offset < found.tail and offset % 1 == 0) then
          disbelieve(key, 'the offset of an id', score, 'a whole number from 0 to ' .. whole(found.tail - 1))
          return unbelieved
        end
        offset = not (past and offset < found.mark) and offset or nil
      end
      if not offset then
        offset = found.tail + #fresh / 2
        fresh[#fresh + 1], fresh[#fresh + 2] = offset, id
        entries[#entries + 1] = argv[i + many]
      end
      seen[id] = offset
      offsets[#offsets + 1] = offset
    end
  end
  found.offsets, found.fresh = offsets, fresh
  found.entries, found.head, found.count = entries, 0, #entries
  if not each and #fresh > 0 then
    found.entries, found.head, found.count = argv, last, #argv - last
  end
end

-- Notes the ids of the entries that have just been appended; most: how many a producer's window has at most.
local function note_ids(key, producers, found, window, most)
  forget_ids(key, producers, found, window, MOST_FORGOTTEN)
  local fresh = found.fresh
  for i = 1, #fresh, 2 do
    fresh[i] = whole(fresh[i])
  end
  for start = 1, #fresh, 2 * IDS_A_CALL do
    redis.call('ZADD', key, unpack(fresh, start, math.min(#fresh, start + 2 * IDS_A_CALL - 1)))
  end
  local many = redis.call('ZCARD', key) - 1
  if many > most then
    redis.call('ZREMRANGEBYRANK', key, 1, many - most)
  end
end
