-- Acknowledges entries that a group of a log has handed out.
--   KEYS[1] meta
--   KEYS[2] state
--   KEYS[3] line
--   KEYS[4] turns
--   KEYS[5] granted
--   KEYS[6] pending
--   KEYS[7] attempts
--   KEYS[8] dead
--   KEYS[9] revived
--   KEYS[10] waiting
--   KEYS[11] news
--   ARGV[1] group
--   ARGV[2] kind
--   ARGV[3..] of each run of entries that follow on each other: the offset of the first one, how many they are, and the delivery that must
--   be the last one of the first, and so on, or ''
-- Returns { 0, how many were pending }, or the reply of open_group() if that refuses.
--@include group
local meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news = unpack(KEYS)
local offsets, deliveries, count = {}, {}, 0
for i = 3, #ARGV, 3 do
  local delivery = tonumber(ARGV[i + 2])
  for each = 0, ARGV[i + 1] - 1 do
    count = count + 1
    offsets[count] = string.format('%d', ARGV[i] + each)
    deliveries[count] = delivery and string.format('%d', delivery + each)
  end
end
local histories = open_short(meta, state, line, turns, granted, dead, revived, waiting, news, ARGV[1], ARGV[2])
  and redis.pcall('HMGET', attempts, unpack(offsets))
local is_short = histories and not histories.err and type(redis.pcall('ZCARD', pending)) == 'number'
if not is_short then
  --@include group
  local problem = open_group(meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news, ARGV[1], ARGV[2])
  if problem then
    return problem
  end
  histories = redis.call('HMGET', attempts, unpack(offsets))
end
local members, settled, some = {}, {}, 0
for i = 1, count do
  local offset, delivery, history = offsets[i], deliveries[i], histories[i]
  local tries, last
  if history then
    -- What history_of() believes, without its functions.
    tries, last = string.match(history, '^([1-9]%d*) (%d+) ')
    if not tries or tonumber(tries) > MOST_ATTEMPTS then
      --@include group
      history_of(attempts, history)
      return unbelieved
    end
  end
  if not delivery or last == delivery then
    some = some + 1
    -- As digits() writes it.
    members[some], settled[some] = string.sub('000000000000000', #offset) .. offset, offset
  end
end
if some == 0 then
  return { 0, 0 }
end
local done = redis.call('ZREM', pending, unpack(members))
redis.call('HDEL', attempts, unpack(settled))
-- In a group that open_short() has opened none is revived.
if not is_short then
  redis.call('HDEL', revived, unpack(settled))
end
return { 0, done }
