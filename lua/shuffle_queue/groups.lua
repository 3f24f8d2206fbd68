-- Names the groups that have ever read a queue.
-- KEYS: meta.
-- Returns { group, ... }.
--@include queue
local problem = refuse(redis.pcall('HMGET', meta, 'mark'), true)
if problem then
  return problem
end
return with_groups({})
