-- The reservation that holds in an Ick: who reserved last, when, and what.
--   KEYS[4] held, a string: token, a space, time, and a list of separator, member, separator, score;
--           the token is 16 digits and greater than every one before, the time is the server's, in
--           milliseconds, and a milestone stands behind each 8 entries. One string for the whole
--           batch, put together by a few calls: an entry for each member would double the cost of
--           a reservation. Of what a reaper has returned the entries are masked (ick_listed).
--   KEYS[5] attempts, a hash: how often a reaper has returned a member; a commit ends that
--@include ick
--@include ick_token
local held, attempts = KEYS[4], KEYS[5]
local has_attempts

-- The token of the reservation that holds, or '' if there never was one; an error reply for a
-- foreign key.
local function current_token()
  local head = redis.pcall('GETRANGE', held, 0, 15)
  if type(head) == 'table' or head ~= '' and not (#head == 16 and tonumber(head)) then
    return layout_error(held, 'does not hold the reservation of an Ick')
  end
  has_attempts = redis.pcall('HLEN', attempts)
  if type(has_attempts) == 'table' then
    return layout_error(attempts, 'does not hold the attempts of an Ick')
  end
  return head
end

-- Writes a new reservation of a list of member, score, ...; returns its token.
local function hold(previous, list)
  local clock = redis.call('TIME')
  local token = next_token(previous, clock)
  local head = string.format('%s %d%03d', token, clock[1], math.floor(clock[2] / 1000))
  if #list > 0 then
    local between, mile, scores = separator(head), milestone(head), {}
    for i = 2 * MILE, #list, 2 * MILE do
      scores[i], list[i] = list[i], list[i] .. mile
    end
    redis.call('SET', held, head .. between .. table.concat(list, between))
    -- The list is the caller's.
    for i, score in pairs(scores) do
      list[i] = score
    end
  else
    redis.call('SET', held, head)
  end
  return token
end

-- Removes members from the consumer set if the caller's token is the one that holds.
-- Returns how many were removed.
local function commit(current, token, first)
  if current ~= '' and current ~= token then
    return 0
  end
  local committed = 0
  while first <= #ARGV do
    local last = math.min(first + 3999, #ARGV)
    committed = committed + redis.call('ZREM', cset, unpack(ARGV, first, last))
    if has_attempts > 0 then
      redis.call('HDEL', attempts, unpack(ARGV, first, last))
    end
    first = last + 1
  end
  return committed
end

-- Moves the first n members of one set to another; the lower score wins.
local function fold(from, to, n)
  while n > 0 do
    local list = redis.call('ZRANGE', from, 0, math.min(n, 2000) - 1, 'WITHSCORES')
    if #list == 0 then
      return
    end
    for i = 1, #list, 2 do
      list[i], list[i + 1] = list[i + 1], list[i]
    end
    redis.call('ZADD', to, 'LT', unpack(list))
    redis.call('ZREMRANGEBYRANK', from, 0, #list / 2 - 1)
    n = n - #list / 2
  end
end

-- Tops up the consumer set to n members, and returns its first n: member, score, ...
local MOST = 9007199254740991 -- beyond it a number of Lua makes no integer of the server's
local function reserve(n, backwash)
  n = math.min(n, MOST)
  if backwash then
    fold(cset, pset, redis.call('ZCARD', cset))
  end
  local size = redis.call('ZCARD', cset)
  if size == 0 then
    redis.call('ZRANGESTORE', cset, pset, 0, n - 1)
    redis.call('ZREMRANGEBYRANK', pset, 0, n - 1)
  end
  -- A member that is in both sets takes no place, so that it may need another turn.
  while size > 0 and size < n and redis.call('EXISTS', pset) == 1 do
    fold(pset, cset, n - size)
    size = redis.call('ZCARD', cset)
  end
  return redis.call('ZRANGE', cset, 0, n - 1, 'WITHSCORES')
end
