-- The facts that a new namespace must know of a server that may expire fields itself.
--   KEYS[1] any key of the caller's, for the routing
--   ARGV[1..] names of commands
-- Returns the eviction policy ('' when the server does not say), the lines of INFO about the server's kind,
-- version, file and replicas (none if the user may not ask), and those of the commands that it knows. A
-- server without INFO (fakeredis is one) is taken to know none of them, and says the policy only.
--@include info

local function is_unknown(problem)
  local said = type(problem) == 'table' and problem.err or tostring(problem)
  return string.find(said, 'nknown', 1, true) ~= nil
end

local policy, refused = policy_of()
local facts = { policy }
if is_unknown(refused) then
  return facts
end
local wanted = { server_name = true, aof_enabled = true, role = true, connected_slaves = true }
local lines = {}
for _, section in ipairs({ 'server', 'persistence', 'replication' }) do
  for name, value in string.gmatch(lines_of(section), '([%w_]+):([^\r\n]*)') do
    if wanted[name] or string.match(name, '_version$') then
      lines[#lines + 1] = name .. ':' .. value
    end
  end
end
facts[2] = table.concat(lines, '\n')
local told, replies = pcall(redis.call, 'COMMAND', 'INFO', unpack(ARGV))
for i, name in ipairs(ARGV) do
  local is_known = told and replies[i]
  if not told then
    -- The user may not ask. By a key alone no command is run, and an unknown one is refused as such.
    local _, problem = pcall(redis.call, name, KEYS[1])
    is_known = not is_unknown(problem)
  end
  if is_known then
    facts[#facts + 1] = name
  end
end
return facts
