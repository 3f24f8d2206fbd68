-- Tells where the message of a tracking id is.
-- KEYS: meta, tracking.
-- ARGV: tracking id.
-- Returns 'stream number:entry id', or nil.
--@include queue
local tracking = KEYS[2]
local problem = refuse(redis.pcall('HMGET', meta, 'mark'))
if problem then
  return problem
end
local found = redis.pcall('HGET', tracking, ARGV[1])
if is_error(found) then
  return refusal(found, tracking, 'does not hold tracking ids')
end
return found
