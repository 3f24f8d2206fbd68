-- What scripts on leases share.
--@include durable_write

-- No token is less: the time in microseconds has had 16 digits since 2001.
local LEAST_TOKEN = 1000000000000000

-- Looks whether a durable key is the lease of a token. A value with fewer digits or more is the
-- user's own, even if somebody takes it for a token. Returns an error reply, or 0 if it is not; or nil,
-- and the mark found.
local function refuse_unheld(key, due, mark, token, at)
  local problem, kind, _, found = refuse(key, due, mark, at)
  if problem then
    return problem
  end
  local is_token = #token == 16 and tonumber(token) >= LEAST_TOKEN
  if kind == 'none' or not is_token or redis.call('GET', key) ~= token then
    return 0
  end
  return nil, found
end
