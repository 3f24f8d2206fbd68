-- Gives messages back, to be served again at their streams' turns, now or after a delay. A message that
-- was delivered too often is set aside.
-- KEYS: meta, due index, layout mark, notifications, ring, returned, delayed, dead, tracking, deadlines,
-- legacy stream, the streams.
-- ARGV: layout mark, queue, ttl in ms, group, delay in ms, attempts after which a message is set aside,
-- then for each message: the place of its stream among these (0: legacy), its stream's number, its
-- entry's id, its consumer, its attempts.
-- Returns how many were given back or set aside, because they were still the consumer's.
--@include upkeep
local notifications, ring, returned, delayed = KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local dead, tracking, deadlines, legacy = KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local group, delay, most_attempts = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local facts = redis.pcall('HMGET', meta, 'mark', 'namespace')
local problem, marked, alive = refuse_queue(facts, facts[2])
if problem then
  return problem
end
local ends = false
for i = 11, #ARGV, 5 do
  ends = ends or tonumber(ARGV[i]) >= most_attempts
end
problem = refuse_key('XLEN', notifications, 'notifications')
for _, key in ipairs({ ring, returned, delayed }) do
  problem = problem or refuse_key('ZCARD', key, 'what belongs to a group')
end
if ends then
  problem = problem
    or refuse_key('HLEN', dead, 'messages set aside')
    or refuse_key('HLEN', tracking, 'tracking ids')
    or refuse_key('ZCARD', deadlines, 'an index of deadlines')
end
if problem then
  return problem
end
local at = now()
local back_at = delay > 0 and at + delay or nil
local given, wakes = 0, nil
for i = 7, #ARGV, 5 do
  local stream = KEYS[11 + ARGV[i]]
  local number, id, attempts = ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 4])
  local reader = number == '-1' and legacy or group
  -- A reaper may have taken it from a slow consumer. Then it belongs to another one.
  local held_ms = is_held(stream, reader, id, ARGV[i + 3], attempts)
  if held_ms then
    -- One that was cancelled is given back, and found to be gone.
    local fields = attempts >= most_attempts and fields_of(stream, id)
    if fields then
      bury(dead, returned, delayed, tracking, deadlines, stream, reader, number, id, attempts, at - held_ms, at, fields)
    else
      -- Without JUSTID it would count as a delivery. A full server allows it, so it comes first.
      redis.call('XCLAIM', stream, reader, 'workstealing:returned', 0, id, 'JUSTID')
      if give_back(ring, returned, delayed, group, number, id, back_at) then
        wakes = number
      end
    end
    given = given + 1
  end
end
if wakes then
  notify(notifications, wakes)
end
if given > 0 then
  keep_alive(marked, alive, delay)
end
return given
