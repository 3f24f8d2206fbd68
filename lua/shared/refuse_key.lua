--@library
-- refuse_key(): a key that holds something else than it should.
--@include layout_error

-- command: one that answers a number where the key is right, or there is none. Returns an error reply or nil.
local function refuse_key(command, key, what)
  local reply = redis.pcall(command, key)
  if type(reply) == 'table' then
    return refusal(reply, key, 'does not hold ' .. what)
  end
end
