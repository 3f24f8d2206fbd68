-- Deletes the message of a tracking id, for every group.
-- KEYS: meta, tracking, deadlines, its stream.
-- ARGV: tracking id, 'stream number:entry id' as it was found.
-- Returns 1 if the message was there, 0 if not, -1 if the tracking id means another message now.
--@include queue
--@include message
local tracking, deadlines, stream = KEYS[2], KEYS[3], KEYS[4]
if redis.call('HGET', tracking, ARGV[1]) ~= ARGV[2] then
  return -1
end
local problem = refuse_key('ZCARD', deadlines, 'an index of deadlines')
stored(meta, 'cancelled', redis.call('HGET', meta, 'cancelled'), 0, MOST_STORED, 0)
problem = problem or unbelieved
if problem then
  return problem
end
-- Readers find it gone, and pass it over.
local deleted = redis.pcall('XDEL', stream, string.match(ARGV[2], ':(.*)$'))
if is_error(deleted) then
  return refusal(deleted, stream, 'does not hold a stream of a shuffle queue')
end
redis.call('HDEL', tracking, ARGV[1])
local number, id = string.match(ARGV[2], '^(-?%d+):(.*)$')
redis.call('ZREM', deadlines, deadline_member(number, id, ARGV[1]))
if deleted == 1 then
  redis.call('HINCRBY', meta, 'cancelled', 1)
end
return deleted
