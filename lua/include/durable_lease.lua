-- What scripts on leases share.

-- No token is less: the time in microseconds has had 16 digits since 2001.
local LEAST_TOKEN = 1000000000000000

-- Says whether a durable key is the lease of a token. A value with fewer digits or more is the
-- user's own, even if somebody takes it for a token.
local function is_held_by(key, token)
  return #token == 16 and tonumber(token) >= LEAST_TOKEN and redis.call('GET', key) == token
end
