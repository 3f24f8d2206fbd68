--@library
-- listed(held): returns find(member, score) and mask(entry), for what a held reservation lists.
--   find: the entry of a member reserved with that score, or nil. The function bisects the list by
--   the milestones in it, and reads a few KB, however long the list is. The list has the order of
--   the consumer set; what is not where it belongs is judged as not listed, which takes longer and
--   is as safe. So is what lies beyond 1,000 entries or 128 KB without a milestone: a release
--   before there were any has written the list, or its members are of 8 KB.
--   mask: the entry is listed no more. The first bytes of its member and of its score move by 128,
--   so that nothing shifts, the order can still be read, and a reader who knows of no masks finds
--   another member.
--@include reservation
local WINDOWS, MOST_ENTRIES, NEAR = { 2048, 16384, 131072 }, 1000, 1024

local INFINITE = { inf = math.huge, ['-inf'] = -math.huge }
local function number(score)
  return INFINITE[score] or tonumber(score)
end

-- Whether a is before b, byte by byte: Lua compares text by the server's locale, Redis does not.
local function is_before(a, b)
  local low, high = 0, math.min(#a, #b)
  while low < high do
    local middle = math.ceil((low + high) / 2)
    if string.sub(a, low + 1, middle) == string.sub(b, low + 1, middle) then
      low = middle
    else
      high = middle - 1
    end
  end
  return (string.byte(a, low + 1) or -1) < (string.byte(b, low + 1) or -1)
end

local function comes_before(member, score, entry)
  return score < entry.score or score == entry.score and is_before(member, entry.member)
end

local function moved(byte)
  return string.char((byte + 128) % 256)
end

-- Reads the entry whose first separator begins at `at`. Returns nil for a part of one, or: member,
-- score as a number, whether it is masked, where its score begins, where the next entry begins.
local function read_entry(text, at, between, is_end)
  local middle = string.find(text, between, at + #between, true)
  if not middle then
    return nil
  end
  local first = middle + #between
  local after = string.find(text, between, first, true) or is_end and #text + 1
  if not after then
    return nil
  end
  local member = string.sub(text, at + #between, middle - 1)
  local score = string.match(text, '^[^\n]*', first)
  local is_masked = #score > 0 and string.byte(score) >= 128
  if is_masked then
    score = moved(string.byte(score)) .. string.sub(score, 2)
    member = #member > 0 and moved(string.byte(member)) .. string.sub(member, 2) or member
  end
  return member, number(score), is_masked, first, after
end

local function listed(held)
  local head = head_of(redis.call('GETRANGE', held, 0, MOST_HEAD - 1)) or ''
  local between, mile = separator(head), milestone(head)
  local size = redis.call('STRLEN', held)
  local probes, parts = {}, {}

  -- The first entry behind a milestone at or after an offset, false for none before `high`.
  local function probe(offset, high)
    for _, length in ipairs(WINDOWS) do
      local text = redis.call('GETRANGE', held, offset, offset + length - 1)
      local is_end = #text < length
      local at = string.find(text, mile .. between, 1, true)
      if at then
        at = at + #mile
        local member, score = read_entry(text, at, between, is_end)
        if score then
          return { offset = offset + at - 1, member = member, score = score }
        end
      elseif is_end or offset + length >= high + #mile + #between then
        break
      end
    end
    return false
  end

  -- The entries from an offset on, by member, until the first milestone at or after `high`.
  local function part(low, high)
    local entries
    for _, length in ipairs(WINDOWS) do
      entries = {}
      local text = redis.call('GETRANGE', held, low, low + length - 1)
      local is_end, at = #text < length, 1
      for _ = 1, MOST_ENTRIES do
        local member, score, is_masked, first, after = read_entry(text, at, between, is_end)
        if not member then
          break
        end
        if score and not is_masked then
          entries[member] = {
            member = member,
            score = score,
            at = low + at + #between - 1,
            score_at = low + first - 1,
          }
        end
        at = after
        if low + at - 1 - #mile >= high and string.sub(text, at - #mile, at - 1) == mile then
          return entries
        end
      end
      if is_end then
        break
      end
    end
    return entries
  end

  -- Without milestones there is nothing to halve. Where members are long, halving further would come
  -- upon the same milestones again.
  local near, first = math.huge, probe(#head, size)
  if first then
    near = math.min(math.max(NEAR, first.offset - #head), WINDOWS[2])
  end

  local function find(member, score)
    score = number(score)
    local low, high = #head, size
    while high - low > near do
      local middle = math.floor((low + high) / 2)
      if probes[middle] == nil then
        probes[middle] = probe(middle, high)
      end
      local found = probes[middle]
      if found and not comes_before(member, score, found) then
        low = found.offset
      else
        high = middle
      end
    end
    -- A caller that asks for many members finds most parts read already.
    parts[low] = parts[low] or part(low, high)
    local entry = parts[low][member]
    return entry and entry.score == score and entry or nil
  end

  local function mask(entry)
    -- An empty member has no first byte.
    for _, offset in ipairs({ entry.score_at, #entry.member > 0 and entry.at or nil }) do
      local byte = string.byte(redis.call('GETRANGE', held, offset, offset))
      redis.call('SETRANGE', held, offset, moved(byte))
    end
  end

  return find, mask
end
