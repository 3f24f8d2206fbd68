-- The facts that a new namespace must know of its server.
-- KEYS: any key of the caller's, for the routing. ARGV: names of commands.
-- Returns the eviction policy ('' when the server does not say), then, if there are names, the lines of
-- INFO about the server's kind, version, file and replicas, and those of the commands that it knows. A
-- server without INFO (fakeredis is one) is taken to know none of them.
local function lines_of(section)
  local ok, info = pcall(redis.call, 'INFO', section)
  return ok and type(info) == 'string' and info
end

local memory = lines_of('memory')
if not memory then
  return { '' }
end
local facts = { string.match(memory, 'maxmemory_policy:([%w-]+)') or '' }
if #ARGV == 0 then
  return facts
end
local wanted = { server_name = true, aof_enabled = true, role = true, connected_slaves = true }
local lines = {}
for _, section in ipairs({ 'server', 'persistence', 'replication' }) do
  for name, value in string.gmatch(lines_of(section) or '', '([%w_]+):([^\r\n]*)') do
    if wanted[name] or string.match(name, '_version$') then
      lines[#lines + 1] = name .. ':' .. value
    end
  end
end
facts[2] = table.concat(lines, '\n')
local known, replies = pcall(redis.call, 'COMMAND', 'INFO', unpack(ARGV))
if known and type(replies) == 'table' then
  for i, name in ipairs(ARGV) do
    if replies[i] then
      facts[#facts + 1] = name
    end
  end
end
return facts
