-- Reads members that were set aside to be moved.
--   KEYS[1] moving
--   KEYS[2] moving dead
--   KEYS[3] moving attempts
--   ARGV[1] how many at most
-- Returns { { member, score, attempts ('' for none), ... }, { dead member, history, ... } }, the dead ones
-- once there are no others.
--@include layout
local problem = refuse_key('ZCARD', KEYS[1], 'members that are being moved')
  or refuse_key('HLEN', KEYS[2], 'dead members that are being moved')
if problem then
  return problem
end
local list = redis.call('ZRANGE', KEYS[1], 0, ARGV[1] - 1, 'WITHSCORES')
if #list == 0 then
  return { list, redis.call('HRANDFIELD', KEYS[2], ARGV[1], 'WITHVALUES') }
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
return { rows, {} }
