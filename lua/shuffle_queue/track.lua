-- Forgets tracking ids whose message has gone.
-- KEYS: meta, tracking, then the stream of each id. ARGV: most to forget, and for each stream the
-- tracking id, what it stands for, and the entry's id.
-- Returns how many were forgotten.
--@include upkeep
local tracking, forgotten = KEYS[2], 0
local problem = refuse_meta()
problem = problem or refuse_key('HLEN', tracking, 'tracking ids')
if problem then
  return problem
end
for i = 3, #KEYS do
  local tracked, place, id = ARGV[3 * i - 7], ARGV[3 * i - 6], ARGV[3 * i - 5]
  if forgotten < tonumber(ARGV[1]) and redis.call('HGET', tracking, tracked) == place then
    local found = redis.pcall('XRANGE', KEYS[i], id, id)
    if not found.err and #found == 0 then
      forgotten = forgotten + redis.call('HDEL', tracking, tracked)
    end
  end
end
return forgotten
