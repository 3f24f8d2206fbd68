-- The lease of an ick shard, a hash: consumer, token, deadline and taken (ms of the server's TIME).
-- It has run out when its deadline has passed; the token grows with each new holder, for ever.
--@include now
--@include layout_error

-- Returns an error reply, or nil and the lease.
local function read_lease(key)
  local found = redis.pcall('HMGET', key, 'token', 'deadline', 'taken', 'consumer')
  if found.err then
    return layout_error(key, 'does not hold the lease of an ick shard')
  end
  return nil,
    {
      token = found[1] or '',
      left = math.max(0, tonumber(found[2] or 0) - now()),
      taken = found[3] or '0',
      consumer = found[4] or '',
    }
end

-- Returns an error reply, or nil and the lease; neither if it is not the token's any more.
local function held_lease(key, token)
  local problem, lease = read_lease(key)
  if problem or lease.token ~= token or lease.left <= 0 then
    return problem
  end
  return nil, lease
end

-- It begins by deleting, which a server lets pass that is out of memory, and then what follows.
local function extend(key, ttl)
  redis.call('HDEL', key, 'deadline')
  redis.call('HSET', key, 'deadline', string.format('%.0f', now() + tonumber(ttl)))
end

-- Extends a lease of which less than half is left.
local function extend_if_short(key, lease, ttl)
  if lease.left * 2 < tonumber(ttl) then
    extend(key, ttl)
  end
end
