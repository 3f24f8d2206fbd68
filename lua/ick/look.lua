-- Looks at a random part of what is reserved in an Ick, and of the entries beside it.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] held
--   KEYS[5] attempts
--   KEYS[6] seen
--   KEYS[7] dead
--   KEYS[8] waiting
--   KEYS[9] terms
--   ARGV[1] how many members to look at
--   ARGV[2] age in ms from which a reservation is stale
--   ARGV[3] a number: of entries beside to look at, and of members that are enough if the reservation lists
--     them (0: no entries, all members)
-- Returns { now, token ('' for none), time of the reservation that holds (0 for none), both times in ms, size
-- of the consumer set, length of held, { member, score, 1 if the reservation lists it or 0, attempts, seen,
-- dead, ... } with '' for what is not there, attempts without a member, seen without a reserved member, number of
-- ripe members that wait, when the first of them became ripe in ms ('' for none) }.
-- While the reservation is not stale, no members.
--@include ick
--@include listed
local version, pset, cset, held, attempts, seen, dead = unpack(KEYS)
local problem = refuse_all(unpack(KEYS))
if problem then
  return problem
end
local at = now()
local _, token, time = head_of(redis.call('GETRANGE', held, 0, MOST_HEAD - 1))
if not token then
  return layout_error(held, 'does not hold the reservation of an Ick')
end
time = time or 0

local members = {}
if at - time >= tonumber(ARGV[2]) then
  local find, enough = listed(held), tonumber(ARGV[3])
  local sample = redis.call('ZRANDMEMBER', cset, ARGV[1], 'WITHSCORES')
  -- A sample of all has always one order, in which two reapers would take the same.
  local is_random = #sample < 2 * redis.call('ZCARD', cset)
  for i = 1, #sample, 2 do
    local member = sample[i]
    local entry = find(member, sample[i + 1])
    members[#members + 1] = member
    members[#members + 1] = sample[i + 1]
    members[#members + 1] = entry and 1 or 0
    members[#members + 1] = redis.call('HGET', attempts, member) or ''
    members[#members + 1] = redis.call('HGET', seen, member) or ''
    members[#members + 1] = redis.call('HGET', dead, member) or ''
    enough = entry and enough - 1 or enough
    if entry and enough == 0 and is_random then
      break
    end
  end
end

local idle_attempts, idle_seen = {}, {}
for _, member in ipairs(redis.call('HRANDFIELD', attempts, ARGV[3]) or {}) do
  if not redis.call('ZSCORE', cset, member) and not redis.call('ZSCORE', pset, member) then
    idle_attempts[#idle_attempts + 1] = member
  end
end
for _, member in ipairs(redis.call('HRANDFIELD', seen, ARGV[3]) or {}) do
  if not redis.call('ZSCORE', cset, member) then
    idle_seen[#idle_seen + 1] = member
  end
end
local ripe = redis.call('ZCOUNT', KEYS[8], '-inf', string.format('%.0f', at))
local first = ripe > 0 and redis.call('ZRANGE', KEYS[8], 0, 0, 'WITHSCORES')[2] or ''
local size = redis.call('ZCARD', cset)
return { at, token, time, size, redis.call('STRLEN', held), members, idle_attempts, idle_seen, ripe, first }
