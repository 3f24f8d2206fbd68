--@library
-- The lines of a server's INFO, for the scripts that open a layout.

-- Returns a section's text, '' if it is refused, and the problem then.
local function lines_of(section)
  -- Not by redis.pcall: fakeredis raises there all the same.
  local ok, info = pcall(redis.call, 'INFO', section)
  return ok and type(info) == 'string' and info or '', not ok and info
end

-- The eviction policy ('' when the server does not say), and the problem of a refused section.
local function policy_of()
  local memory, refused = lines_of('memory')
  return string.match(memory, 'maxmemory_policy:([%w-]+)') or '', refused
end
