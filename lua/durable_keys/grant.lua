--@library
-- The grant of a lease, a string beside it: its token, a space, and the nonce that its holder has
-- chosen. It ends with the lease, by a deadline of its own in the due index. An earlier release
-- changes a lease without it; so it says something only as long as the lease holds the same token.
--@include layout

-- Returns an error reply, or nil and the token that was granted to a nonce, nil if none was.
local function token_of(grant, nonce)
  local found = redis.pcall('GET', grant)
  if type(found) == 'table' then
    return refusal(found, grant, 'does not hold the grant of a lease')
  end
  local token = found and string.match(found, '^(%d+) ')
  return nil, token and found == token .. ' ' .. nonce and token or nil
end
