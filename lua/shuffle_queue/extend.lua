-- Notes that messages are still being worked on: their idle time starts again, and so does the queue's.
-- KEYS: meta, due index, layout mark, legacy stream, the streams.
-- ARGV: layout mark, queue, ttl in ms, group, then for each message: the place of its stream among
--   these (0: legacy), its stream's number, its entry's id, its consumer, its attempts.
-- Returns how many were still the consumer's.
--@include queue
local legacy, group = KEYS[4], ARGV[4]
local facts = redis.pcall('HMGET', meta, 'mark', 'namespace')
local problem, marked, alive = refuse_queue(facts, facts[2])
if problem then
  return problem
end
local extended = 0
for i = 5, #ARGV, 5 do
  local place = 4 + ARGV[i]
  local stream = KEYS[place]
  local id, consumer = ARGV[i + 2], ARGV[i + 3]
  local reader = ARGV[i + 1] == '-1' and legacy or group
  if is_held(stream, reader, id, consumer, ARGV[i + 4]) then
    -- A full server allows it, and then it allows the writes behind it.
    extended = extended + #redis.call('XCLAIM', stream, reader, consumer, 0, id, 'JUSTID')
  end
end
if extended > 0 then
  keep_alive(marked, alive)
end
return extended
