--@library
-- The part that all scripts on an ick shard share: its mark, and its lease.
--@include reservation
--@include clock
--@include stored

-- Compares the mark of an ick shard, "version:generation:ick_shards", with
-- the caller's. Returns an error reply, or nil and one of
--   'same'
--   'older': the layout has changed since the ick shard was last written; the caller may go on
--   'newer': the caller's layout is out of date; it must change nothing and read the layout again
-- A missing mark is an older one. Generations are tokens.
local function mark_state(key, mine)
  local found = redis.pcall('GET', key)
  if type(found) == 'table' then
    return refusal(found, key, 'does not hold the mark of an ick shard')
  end
  if found == mine then
    return nil, 'same'
  end
  if not found then
    return nil, 'older'
  end
  local release, generation = string.match(found, '^(%d+):(%d+):')
  local my_release, my_generation = string.match(mine, '^(%d+):(%d+):')
  if release ~= my_release then
    return layout_error(key, 'says ' .. found .. ' where ' .. mine .. ' was expected')
  end
  return nil, is_greater(generation, my_generation) and 'newer' or 'older'
end

-- Adds score, member, ... to an ick shard unless the caller's layout is out of date. Returns { new members,
-- members whose score became lower }, nil if it is, or an error reply.
-- mark: of the ick shard; mine: the caller's
local function add_marked(mark, mine, version, pset, cset, list)
  local problem, state = mark_state(mark, mine)
  if problem or state == 'newer' then
    return problem or false
  end
  local reply = add_pairs(version, pset, cset, list)
  if state == 'older' and not reply.err then
    redis.call('SET', mark, mine)
  end
  return reply
end

-- The lease of an ick shard, a hash: consumer, token, deadline and taken (ms of the server's TIME).
-- It has run out when its deadline has passed; the token grows with each new holder, for ever.
-- Returns an error reply, or nil and the lease.
local function read_lease(key)
  local found = redis.pcall('HMGET', key, 'token', 'deadline', 'taken', 'consumer')
  if found.err then
    return refusal(found, key, 'does not hold the lease of an ick shard')
  end
  if found[1] and (string.find(found[1], '%D') or #found[1] < 16 or #found[1] > 20) then
    disbelieve(key, 'token', found[1], 'a number of 16 digits')
  end
  local deadline = stored(key, 'deadline', found[2], 0, MOST_STORED, 0)
  stored(key, 'taken', found[3], 0, MOST_STORED, 0)
  if unbelieved then
    return unbelieved
  end
  return nil,
    {
      token = found[1] or '',
      left = math.max(0, deadline - now()),
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

-- The grant of a lease: its field nonce, the token, a space, and the nonce that its holder has chosen. An
-- earlier release grants without it, so it says something only beside the same token.
local function is_granted(key, lease, nonce)
  return lease.left > 0 and redis.call('HGET', key, 'nonce') == lease.token .. ' ' .. nonce
end

-- The nonces that were given back of late, in the lease's field withdrawn: until when (ms), nonce, ..., the
-- last MOST_WITHDRAWN of them. They are granted nothing, because the call that asks may be under way still.
local MOST_WITHDRAWN = 16
local function withdrawn_nonces(key)
  local list, at = {}, now()
  for until_ms, nonce in string.gmatch(redis.call('HGET', key, 'withdrawn') or '', '(%d+) (%x+)') do
    if tonumber(until_ms) > at then
      list[#list + 1] = until_ms .. ' ' .. nonce
      list[nonce] = true
    end
  end
  return list
end

-- The beginning of every acknowledgement in a leased ick shard.
-- token: of the lease. Returns an error reply; or nil, the token of the reservation that holds, and the
-- lease, nil if it is not held any more.
local function open_held(version, pset, cset, held, attempts, lease_key, token)
  local problem = refuse(version, pset, cset, false)
  if problem then
    return problem
  end
  local wrong, lease = held_lease(lease_key, token)
  local current = wrong or current_token(held, attempts)
  if type(current) == 'table' then
    return current
  end
  return nil, current, lease
end
