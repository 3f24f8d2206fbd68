-- Deletes durable keys whose deadline has passed, with their entries in the due index.
--   KEYS[1] due index
--   KEYS[2..] keys
-- Returns how many entries were removed. A script, not a WATCH: a new deadline changes only the due index,
-- which many keys share. The script deletes and writes nothing, so a full server lets it run.
--@include clock
local due, at = KEYS[1], now()
local past, ours = {}, {}
-- In runs, because unpack() has its limits.
for first = 2, #KEYS, 4000 do
  local last = math.min(first + 3999, #KEYS)
  for i, deadline in ipairs(redis.call('ZMSCORE', due, unpack(KEYS, first, last))) do
    if deadline and tonumber(deadline) <= at then
      local key = KEYS[first + i - 1]
      past[#past + 1] = key
      -- A key of another type is somebody else's, and only the entry is garbage.
      if redis.call('TYPE', key).ok == 'string' then
        ours[#ours + 1] = key
      end
    end
  end
end
for first = 1, #ours, 4000 do
  redis.call('UNLINK', unpack(ours, first, math.min(first + 3999, #ours)))
end
local removed = 0
for first = 1, #past, 4000 do
  removed = removed + redis.call('ZREM', due, unpack(past, first, math.min(first + 3999, #past)))
end
return removed
