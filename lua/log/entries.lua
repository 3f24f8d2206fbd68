--@library
-- read_entries(): entries of blocks in any form, list, raw or compressed, without moving more than is asked for.
--@include values
--@include layout

local function u32(text, at)
  local a, b, c, d = string.byte(text, at, at + 3)
  return ((a * 256 + b) * 256 + c) * 256 + d
end

-- Adds pieces of a list to items, as long as there is room. Returns what is then left of the room, how many were read, or an error.
local function read_list(key, low, high, room, items)
  local most, start = 1, low
  while low <= high and room > 0 do
    local last = math.min(high, low + most - 1)
    local found = redis.pcall('LRANGE', key, low, last)
    if found.err then
      --@include layout
      return room, 0, refusal(found, key, 'does not hold the entries that the log has there')
    end
    if #found ~= last - low + 1 then
      --@include layout
      return room, 0, layout_error(key, 'does not hold the entries that the log has there')
    end
    local bytes = 0
    for i = 1, #found do
      bytes = bytes + #found[i]
    end
    items.kinds = items.kinds .. 'L'
    items[#items + 1] = found
    room = room - bytes
    low = last + 1
    -- A reply is bounded in bytes: of entries whose length is not known yet, only a few more are taken than so far.
    most = math.max(1, math.min(4000, 16 * most, math.floor(room / (bytes / #found + 1))))
  end
  return room, low - start
end

-- Adds the ends and bytes of entries of a raw block to items, or a compressed block as a whole.
local function read_string(key, low, high, block, room, items)
  local header = redis.pcall('GETRANGE', key, 0, 15)
  if is_error(header) then
    --@include layout
    return room, 0, refusal(header, key, 'does not hold the entries that the log has there')
  end
  local count = high - low + 1
  -- The caller knows more codecs than Lua does, and says what is damaged.
  local function read_whole()
    local whole_block = redis.call('GET', key)
    items.kinds = items.kinds .. 'S'
    items[#items + 1] = whole_block
    return room - #whole_block, count
  end
  if #header < 16 or string.sub(header, 1, 6) ~= 'WSL\1r\0' then
    return read_whole()
  end
  if u32(header, 9) ~= block then
    --@include layout
    return room, 0, layout_error(key, 'does not hold the entries that the log has there')
  end
  local before = math.max(low - 1, 0)
  local ends = redis.call('GETRANGE', key, 16 + 4 * before, 19 + 4 * high)
  if #ends ~= 4 * (high - before + 1) then
    return read_whole()
  end
  local start = 0
  if low > 0 then
    start = u32(ends, 1)
    ends = string.sub(ends, 5)
  end
  local some = count
  while some > 1 and u32(ends, 4 * some - 3) - start > room do
    some = math.floor(some / 2)
  end
  local stop = u32(ends, 4 * some - 3)
  local base = 16 + 4 * block
  local bytes = stop > start and redis.call('GETRANGE', key, base + start, base + stop - 1) or ''
  if #bytes ~= stop - start then
    return read_whole()
  end
  if some < count then
    ends = string.sub(ends, 1, 4 * some)
  end
  items.kinds = items.kinds .. 'R'
  items[#items + 1] = { start, ends, bytes }
  return room - #bytes, some
end

-- Reads the entries at..stop-1, as far as the keys that were passed and the room go.
-- keys: among them those of blocks; from: index of the key of block `number`, up to `last`; known: a text with '1' for each of these blocks that the caller has.
-- Returns items, whose `kinds` has a letter for each: L a list of entries; R { start, ends, bytes } of a raw block;
-- S a sealed block; C one that the caller has. Or an error reply.
local function read_entries(keys, at, stop, block, from, number, last, known, room)
  local items = { kinds = '' }
  while at < stop and room > 0 do
    local each = math.floor(at / block)
    local index = from + each - number
    if index < from or index > last then
      break
    end
    local key = keys[index]
    local low = at - each * block
    local high = math.min(stop - each * block, block) - 1
    local read, problem
    if string.sub(known, index - from + 1, index - from + 1) == '1' then
      items.kinds = items.kinds .. 'C'
      items[#items + 1] = ''
      read = high - low + 1
    else
      local kind = redis.call('TYPE', key).ok
      if kind == 'list' then
        room, read, problem = read_list(key, low, high, room, items)
      elseif kind == 'string' then
        --@include entries
        room, read, problem = read_string(key, low, high, block, room, items)
      else
        --@include layout
        problem = layout_error(key, 'does not hold the entries that the log has there')
      end
    end
    if problem then
      return problem
    end
    at = at + read
    if read < high - low + 1 then
      break
    end
  end
  return items
end
