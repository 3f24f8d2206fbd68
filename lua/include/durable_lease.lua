-- What scripts on leases share.
--@include durable_write
--@include token

-- Tokens are greater: the time in microseconds has had 16 digits since 2001.
local BELOW_ALL = '999999999999999'

-- Looks whether a durable key is the lease of a token. A value with fewer digits or more is the
-- user's own, even if somebody takes it for a token. Returns an error reply, or 0 if it is not; or nil,
-- and the mark found.
local function refuse_unheld(key, due, mark, token, at)
  local problem, kind, _, found = refuse(key, due, mark, at)
  if problem then
    return problem
  end
  local most = at < 1e13 and 16 or 17
  local is_token = #token <= most and string.match(token, '^%d+$') and is_greater(token, BELOW_ALL)
  if kind == 'none' or not is_token or redis.call('GET', key) ~= token then
    return 0
  end
  return nil, found
end
