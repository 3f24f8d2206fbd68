-- Serves one message of the stream whose turn it is by a group's plan. This is the usual read. If
-- anything is not as planned, shuffle_queue/read takes over.
-- KEYS: meta, the read's receipt, the streams that the caller expects, in the order of their turns.
-- ARGV: group, consumer, the plan's name, the number of the stream that is served before these, the
-- read's number.
-- Returns { server's time in s, and its microseconds, stream number, { entry id, fields and values
-- } } for a message of that stream; { false, false, stream number, entry id } for an entry that was
-- read but must not be served, because it is overdue or another group's; or, with nothing changed,
-- a text. The text is the number of the stream served last, then the present plan's name and its
-- streams, if the caller's plan is another one or the next stream was not passed; it is '' if no
-- plan is of use, or if this read or a later one was granted a message before.
--@include queue
--@include receipt
local turn = 'group:' .. ARGV[1]
local facts = redis.pcall('HMGET', KEYS[1], 'mark', 'plan:' .. ARGV[1], turn)
local last = facts[3]
if facts[1] ~= QUEUE_VERSION or not facts[2] or not last then
  return ''
end
-- The key of a stream is `...s3` where that of the facts is `...meta`.
local i, number = 3, ARGV[4]
while number ~= last and KEYS[i] do
  number = string.sub(KEYS[i], #KEYS[1] - 2)
  i = i + 1
end
local stream = KEYS[i]
if facts[2] ~= ARGV[3] or not stream then
  local turns = redis.call('HGET', KEYS[1], 'turns:' .. ARGV[1])
  return turns and last .. ' ' .. turns or ''
end
number = string.sub(stream, #KEYS[1] - 2)
local taken = redis.pcall('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', 1, 'STREAMS', stream, '>')
-- fakeredis gives one stream's reply without the list around it.
local entry = taken and (type(taken[1]) == 'table' and taken[1][2] or taken[2])
entry = entry and entry[1]
if not entry then
  return ''
end
local fields = entry[2]
if fields[#fields - 1] ~= 'ws:tenant' then
  --@include message
  local only, deadline = own_of(fields)
  if only and only ~= ARGV[1] or deadline and deadline <= now() then
    return { false, false, number, entry[1] }
  end
end
local before = write_receipt(KEYS[2], ARGV[5] .. ' ' .. number .. ':' .. entry[1] .. ':1')
if before then
  local sent = receipt_of(before)
  if sent and sent >= tonumber(ARGV[5]) then
    -- To look first would cost each read a command more. So it is as if this one had not come.
    write_receipt(KEYS[2], before)
    local left = redis.call('XREVRANGE', stream, '(' .. entry[1], '-', 'COUNT', 1)[1]
    redis.call('XACK', stream, ARGV[1], entry[1])
    redis.call('XGROUP', 'SETID', stream, ARGV[1], left and left[1] or '0-0')
    return ''
  end
end
redis.call('HSET', KEYS[1], turn, number)
-- The caller is quicker at numbers.
local clock = redis.call('TIME')
return { clock[1], clock[2], number, entry }
