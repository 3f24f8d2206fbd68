-- Reads members that were set aside to be moved.
--   KEYS[1] moving
--   KEYS[2] moving dead
--   KEYS[3] moving attempts
--   KEYS[4] moving waiting
--   KEYS[5] moving terms
--   ARGV[1] how many at most
-- Returns { { member, score, attempts ('' for none), ... }, { dead member, history, ... }, { member that waits,
-- when it is ripe in ms, terms, ... } }: the dead once there are no members of the first kind, and then the third.
--@include layout
--@include waiting
local problem = refuse_key('ZCARD', KEYS[1], 'members that are being moved')
  or refuse_key('HLEN', KEYS[2], 'dead members that are being moved')
  or refuse_key('ZCARD', KEYS[4], 'waiting members that are being moved')
  or refuse_key('HLEN', KEYS[5], 'the terms of members that are being moved')
if problem then
  return problem
end
local list = redis.call('ZRANGE', KEYS[1], 0, ARGV[1] - 1, 'WITHSCORES')
if #list == 0 then
  local graves = redis.call('HRANDFIELD', KEYS[2], ARGV[1], 'WITHVALUES') or {}
  return { list, graves, #graves == 0 and waiting_rows(KEYS[4], KEYS[5], tonumber(ARGV[1])) or {} }
end
local members = {}
for i = 1, #list, 2 do
  members[#members + 1] = list[i]
end
local attempts = redis.pcall('HMGET', KEYS[3], unpack(members))
if attempts.err then
  return refusal(attempts, KEYS[3], 'does not hold the attempts of an Ick')
end
local rows = {}
for i, member in ipairs(members) do
  rows[3 * i - 2] = member
  rows[3 * i - 1] = list[2 * i]
  rows[3 * i] = attempts[i] or ''
end
return { rows, {}, {} }
