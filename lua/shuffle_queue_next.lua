-- Serves one message of the stream that a group's plan names: the usual read. What is not as planned
-- is left to shuffle_queue_read.
-- KEYS: meta, the streams that the caller expects. ARGV: group, consumer, the numbers of the streams.
-- Returns { server's time in s, and its microseconds, stream number, { entry id, fields and values } } for a message of the next stream
-- of the plan; { false, false, stream number, entry id } for one that was read but is not to be served: it is overdue, or
-- another group's; or what is left of the plan, '' if that is of no use, having changed nothing.
--@include shuffle_queue_version
local planned = 'plan:' .. ARGV[1]
local facts = redis.pcall('HMGET', KEYS[1], 'mark', planned)
local plan = facts[2]
if facts[1] ~= QUEUE_VERSION or not plan then
  return ''
end
-- The last number of a plan only says with what the next one begins.
local number, following = string.match(plan, '^(%d+) ()')
local i = 3
while ARGV[i] ~= number do
  i = i + 1
  if i > #ARGV then
    return plan
  end
end
local taken = redis.pcall('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', 1, 'STREAMS', KEYS[i - 1], '>')
-- fakeredis gives one stream's reply without the list around it.
local entry = taken and (type(taken[1]) == 'table' and taken[1][2] or taken[2])
entry = entry and entry[1]
if not entry then
  return ''
end
local fields = entry[2]
if fields[#fields - 1] ~= 'ws:tenant' then
--@include now
--@include shuffle_queue_own
  local only, deadline = own_of(fields)
  if only and only ~= ARGV[1] or deadline and deadline <= now() then
    return { false, false, number, entry[1] }
  end
end
redis.call('HSET', KEYS[1], 'group:' .. ARGV[1], number, planned, string.sub(plan, following))
-- The caller is quicker at numbers.
local clock = redis.call('TIME')
return { clock[1], clock[2], number, entry }
