-- Says that messages are still being worked on: their idle time starts anew.
-- KEYS: meta, legacy stream, the streams.
-- ARGV: group, then for each message: the place of its stream among these (0: legacy), its stream's
--   number, its entry's id, its consumer.
-- Returns how many were still the consumer's.
--@include shuffle_queue
local legacy = KEYS[2]
local problem = refuse(redis.pcall('HMGET', meta, 'mark'))
if problem then
  return problem
end
local extended = 0
for i = 2, #ARGV, 4 do
  local place = 2 + ARGV[i]
  local stream = KEYS[place]
  local id, consumer = ARGV[i + 2], ARGV[i + 3]
  local reader = ARGV[i + 1] == '-1' and legacy or ARGV[1]
  local found = redis.pcall('XPENDING', stream, reader, id, id, 1)
  if not is_error(found) and found[1] and found[1][2] == consumer then
    extended = extended + #redis.call('XCLAIM', stream, reader, consumer, 0, id, 'JUSTID')
  end
end
return extended
