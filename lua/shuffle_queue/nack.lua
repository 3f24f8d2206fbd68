-- Gives messages back, to be served again at their streams' turns, now or after a delay.
-- KEYS: meta, due index, layout mark, notifications, ring, returned, delayed, legacy stream, the
-- streams.
-- ARGV: layout mark, queue, ttl in ms, group, delay in ms, then for each message: the place of its
-- stream among these (0: legacy), its stream's number, its entry's id, its consumer, its attempts.
-- Returns how many were given back, because they were still the consumer's.
--@include queue
local notifications, ring, returned, delayed, legacy = KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local group, delay = ARGV[4], tonumber(ARGV[5])
local facts = redis.pcall('HMGET', meta, 'mark', 'namespace')
local problem, marked, alive = refuse_queue(facts, facts[2])
if problem then
  return problem
end
problem = refuse_key('XLEN', notifications, 'notifications')
for _, key in ipairs({ KEYS[5], KEYS[6], KEYS[7] }) do
  problem = problem or refuse_key('ZCARD', key, 'what belongs to a group')
end
if problem then
  return problem
end
local at = delay > 0 and now() + delay or nil
local given, wakes = 0, nil
for i = 6, #ARGV, 5 do
  local place = 8 + ARGV[i]
  local stream = KEYS[place]
  local number, id = ARGV[i + 1], ARGV[i + 2]
  local reader = number == '-1' and legacy or group
  -- A reaper may have taken it from a slow consumer. Then it belongs to another one.
  if is_held(stream, reader, id, ARGV[i + 3], ARGV[i + 4]) then
    -- Without JUSTID it would count as a delivery. A full server allows it, so it comes first.
    redis.call('XCLAIM', stream, reader, 'workstealing:returned', 0, id, 'JUSTID')
    if give_back(ring, returned, delayed, group, number, id, at) then
      wakes = number
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
