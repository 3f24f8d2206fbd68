-- Serves one message of the stream that a group's plan names: the usual read. What is not as planned
-- is left to shuffle_queue_read.
-- KEYS: meta, the streams that the caller expects. ARGV: group, consumer, the numbers of the streams.
-- Returns { server's time in ms, plan, { entry id, fields and values } } for a message of the first stream of
-- the plan, which has lost this number now; { 0, plan, entry id } for one that was read but is not to be
-- served: it is overdue, or another group's; or the plan as it stands, '' for none, having changed nothing.
--@include now
--@include shuffle_queue_version
local facts = redis.pcall('HMGET', KEYS[1], 'mark', 'plan:' .. ARGV[1])
local plan = facts[2]
if facts[1] ~= QUEUE_VERSION or not plan then
  return ''
end
-- The last number of a plan only says with what the next one begins.
local number, rest = string.match(plan, '^(%d+) (.+)$')
local place
for i = 3, #ARGV do
  if ARGV[i] == number then
    place = i - 1
    break
  end
end
if not place then
  return plan
end
local taken = redis.pcall('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', 1, 'STREAMS', KEYS[place], '>')
-- fakeredis gives one stream's reply without the list around it.
local entry = taken and (type(taken[1]) == 'table' and taken[1][2] or taken[2])
entry = entry and entry[1]
if not entry then
  return ''
end
local at, fields = now(), entry[2]
if fields[#fields - 1] ~= 'ws:tenant' then
--@include shuffle_queue_own
  local only, deadline = own_of(fields)
  if only and only ~= ARGV[1] or deadline and deadline <= at then
    return { 0, plan, entry[1] }
  end
end
redis.call('HSET', KEYS[1], 'group:' .. ARGV[1], number, 'plan:' .. ARGV[1], rest)
return { at, plan, entry }
