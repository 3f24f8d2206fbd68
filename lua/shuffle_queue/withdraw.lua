-- Gives back the messages of a read by its receipt alone, for a reader that was interrupted before it had the
-- reply. These messages are served again at their streams' turns, and this delivery is not counted.
-- The read may still be under way; then it will be granted nothing.
-- KEYS: meta, notifications, ring, returned, delayed, legacy stream, the read's receipt, the streams that it may
-- have read.
-- ARGV: group, consumer, the read's number, the numbers of the streams.
-- Returns how many were given back.
--@include queue
--@include receipt
local notifications, ring, returned, delayed = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local legacy, receipt = KEYS[6], KEYS[7]
local group, consumer, mine = ARGV[1], ARGV[2], tonumber(ARGV[3])
local problem = refuse(redis.pcall('HMGET', meta, 'mark'))
  or refuse_key('XLEN', notifications, 'notifications')
  or refuse_key('ZCARD', ring, 'the ring of a group')
  or refuse_key('ZCARD', returned, 'returned entries')
if problem then
  return problem
end
local number, noted = receipt_of(redis.pcall('GET', receipt))
if number and number > mine then
  return 0
end
-- The read may still be under way, and a full server would grant it messages. It allows a removal, and then
-- the rest of the script.
redis.call('DEL', receipt)
local places = { ['-1'] = 6 }
for i = 8, #KEYS do
  places[ARGV[i - 4]] = i
end
local given, wakes = 0, nil
for _, place in ipairs(number == mine and granted_by(noted) or {}) do
  local stream = KEYS[places[place[1]]]
  local id, deliveries = place[2], tonumber(place[3])
  local reader = place[1] == '-1' and legacy or group
  if stream and is_held(stream, reader, id, consumer, deliveries) then
    -- Nobody has seen it.
    redis.call('XCLAIM', stream, reader, 'workstealing:returned', 0, id, 'RETRYCOUNT', deliveries - 1, 'JUSTID')
    if give_back(ring, returned, delayed, group, place[1], id) then
      wakes = place[1]
    end
    given = given + 1
  end
end
write_receipt(receipt, ARGV[3])
if wakes then
  notify(notifications, wakes)
end
return given
