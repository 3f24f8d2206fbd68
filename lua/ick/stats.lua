-- Describes an Ick.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] dead
--   KEYS[5] waiting
--   KEYS[6] terms
-- Returns nil if there is none, else { version, size and lowest and highest score of the producer set, the
-- same of the consumer set, number of dead members, how many scores look like times in seconds, milliseconds
-- and microseconds, number of members that wait for their rest }; scores as text, '' where a set is empty.
--@include ick
local version, pset, cset, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local problem, exists = refuse(version, pset, cset, false)
if problem or not exists then
  return problem or false
end
local function describe(key)
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  return redis.call('ZCARD', key), first[2] or '', last[2] or ''
end
local producer_size, producer_min, producer_max = describe(pset)
local consumer_size, consumer_min, consumer_max = describe(cset)
local graves = redis.pcall('HLEN', dead)
if type(graves) == 'table' then
  return refusal(graves, dead, 'does not hold the dead members of an Ick')
end
local waits = count_waiting(KEYS[5], KEYS[6])
if type(waits) == 'table' then
  return waits
end
local units = {}
for i, low in ipairs({ '1e8', '1e11', '1e14' }) do
  local high = '(' .. string.format('%.0f', tonumber(low) * 1000)
  units[i] = redis.call('ZCOUNT', pset, low, high) + redis.call('ZCOUNT', cset, low, high)
end
return {
  IS_ICK,
  producer_size,
  producer_min,
  producer_max,
  consumer_size,
  consumer_min,
  consumer_max,
  graves,
  units[1],
  units[2],
  units[3],
  waits,
}
