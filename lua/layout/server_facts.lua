-- The facts that a new namespace must know of its server.
-- KEYS: any key of the caller's, for the routing. ARGV: names of commands.
-- Returns the eviction policy ('' when the server does not say), then those of the commands that it
-- knows. A server without INFO (fakeredis is one) is taken to know none of them.
local ok, info = pcall(redis.call, 'INFO', 'memory')
if not ok or type(info) ~= 'string' then
  return { '' }
end
local facts = { string.match(info, 'maxmemory_policy:([%w-]+)') or '' }
local known, replies = pcall(redis.call, 'COMMAND', 'INFO', unpack(ARGV))
if known and type(replies) == 'table' then
  for i, name in ipairs(ARGV) do
    if replies[i] then
      facts[#facts + 1] = name
    end
  end
end
return facts
