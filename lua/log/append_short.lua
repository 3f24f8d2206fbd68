-- Appends entries in the middle of a block, where nothing is unusual: the short path beside append.lua, which does everything.
--   KEYS[1] meta
--   KEYS[2] the block
--   KEYS[3] times
--   KEYS[4] news
--   KEYS[5] waiting
--   ARGV[1] entries a block
--   ARGV[2] number of the block
--   ARGV[3..] the entries
-- Returns the offset of the first entry; or, having changed nothing, the groups in which somebody may wait, or an empty list if
-- something else is unusual: then append.lua is to do it, which says what is wrong.
--@include clock
--@include log
local facts = redis.pcall('HMGET', KEYS[1], 'mark', 'next', 'block', 'first', 'kept', 'joined')
local tail, first, kept, joined = facts[2], facts[4], facts[5], facts[6]
-- The same texts and bounds as `stored` takes, without its functions.
local DIGITS = '^[1-9]%d*$'
if
  (facts[1] ~= LOG_VERSION and facts[1] ~= HOLES_VERSION)
  or facts[3] ~= ARGV[1]
  or not (tail and string.find(tail, DIGITS))
then
  return {}
end
local count, block, low = #ARGV - 2, tonumber(ARGV[1]), ARGV[1] * ARGV[2]
tail = tonumber(tail)
local place, stop = tail - low, tail + count
-- At the end of a block there is more to do, and to check; and Lua's own texts of numbers have 14 digits.
if
  place < 1
  or place + count >= block
  or stop >= 100000000000000
  or (first ~= '0' and not (first and string.find(first, DIGITS) and tonumber(first) <= tail))
  or (kept ~= '0' and not (kept and string.find(kept, DIGITS) and tonumber(kept) <= math.floor(first / block)))
then
  return {}
end
local clock = redis.call('TIME')
local at = clock[1] * 1000 + math.floor(clock[2] / 1000) + CLOCK_SHIFT_MS
if joined and joined ~= '0' then
  if not string.find(joined, DIGITS) or tonumber(joined) > MOST_STORED * 100 then
    return {}
  end
  local names = redis.pcall('ZRANGEBYSCORE', KEYS[5], '(' .. at, at + DAY_MS .. '')
  if names.err then
    return {}
  end
  if names[1] then
    for i = 1, #names do
      if redis.call('HEXISTS', KEYS[1], 'group:' .. names[i]) == 0 then
        return {}
      end
    end
    return names
  end
end
local moment, ends = at .. '', stop .. ''
local timed = redis.pcall('ZSCORE', KEYS[3], ARGV[2])
if type(timed) == 'table' then
  return {}
end
-- Its reply is the length that the block had before, too.
local length = redis.pcall('RPUSH', KEYS[2], unpack(ARGV, 3))
if type(length) == 'table' then
  return {}
end
local told
if length == place + count then
  if tail % NEWS_KEPT + count < NEWS_KEPT then
    told = redis.pcall('XADD', KEYS[4], ends .. '-0', 'n', '1')
  else
    told = redis.pcall('XADD', KEYS[4], 'MAXLEN', '~', 1, ends .. '-0', 'n', '1')
  end
end
if type(told) ~= 'string' then
  redis.call('LTRIM', KEYS[2], 0, -1 - count)
  return {}
end
-- Many entries come within one millisecond.
if timed ~= moment then
  redis.call('ZADD', KEYS[3], moment, ARGV[2])
end
redis.call('HSET', KEYS[1], 'next', ends)
return tail
