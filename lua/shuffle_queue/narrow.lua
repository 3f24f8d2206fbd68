-- Lowers the span of a queue over its highest streams, as far as they are gone, or have been empty for long.
-- An empty stream goes with what is kept beside it. A process that still counts on it loses nothing by
-- that: a script that writes into a stream beyond the span raises the span again.
-- KEYS: meta, then ring, pending, returned and laps of each group, then the highest streams, in their order.
-- ARGV: span and joined as they were at the look, 1 to change nothing, idle ms, the most streams to give up,
-- how many groups, their names.
-- Returns how many streams are given up; 0, with nothing changed, if span or joined are others now.
--@include upkeep
local seen_span, seen_joined, is_dry = ARGV[1], ARGV[2], ARGV[3] == '1'
local idle_ms, limit, width = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local KINDS = { 'the ring of a group', 'the streams with pending entries', 'returned entries', 'the laps of a reaper' }
local first = 2 + 4 * width
local problem, mark = refuse_meta(is_dry)
for i = 2, first - 1 do
  local kind = (i - 2) % 4 + 1
  problem = problem or refuse_key(kind == 4 and 'HLEN' or 'ZCARD', KEYS[i], KINDS[kind])
end
for i = first, #KEYS do
  problem = problem or refuse_key('XLEN', KEYS[i], 'a stream of a shuffle queue')
end
if problem then
  return problem
end
local facts = redis.call('HMGET', meta, 'span', 'joined')
local span = span_of(facts[1])
joined_of(facts[2])
if unbelieved then
  return unbelieved
end
if not mark or facts[1] ~= seen_span or (facts[2] or '') ~= seen_joined then
  return 0
end

-- Whether nothing of a stream is needed any more. Ids are made of the clock, so the next stream of this number
-- uses none of them again.
local function is_over(stream)
  if redis.call('EXISTS', stream) == 0 then
    return true
  end
  if redis.call('XLEN', stream) > 0 then
    return false
  end
  for _, reader in pairs(readers_of(stream)) do
    -- A message that was cancelled, and that a consumer still has in hand, is one of them.
    if reader.pending > 0 then
      return false
    end
  end
  local about = redis.call('XINFO', 'STREAM', stream)
  for i = 1, #about, 2 do
    if about[i] == 'last-generated-id' then
      return string.match(about[i + 1], '^%d+') + idle_ms <= now()
    end
  end
  return false
end

local left = span
while span - left < limit do
  local stream = KEYS[#KEYS - (span - left)]
  if #KEYS - (span - left) < first or not is_over(stream) then
    break
  end
  left = left - 1
end
if left == span or is_dry then
  return span - left
end
for i = 0, span - left - 1 do
  redis.call('UNLINK', KEYS[#KEYS - i])
end
for i = 1, width do
  local at = 4 * i - 2
  -- In a ring, and of what was returned, the score of a member is the number of its stream.
  local gone = redis.call('ZREMRANGEBYSCORE', KEYS[at], left, span - 1)
  gone = gone + redis.call('ZREMRANGEBYSCORE', KEYS[at + 2], left, span - 1)
  for number = left, span - 1 do
    gone = gone + redis.call('ZREM', KEYS[at + 1], number)
    redis.call('HDEL', KEYS[at + 3], 'lap:' .. number)
  end
  if gone > 0 then
    -- A plan may name one of these streams, and relies on the marks.
    redis.call('HDEL', meta, 'plan:' .. ARGV[6 + i])
  end
end
-- Where memory is full, this passes behind the deletions.
redis.call('HSET', meta, 'span', left)
return span - left
