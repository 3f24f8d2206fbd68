--@library
-- The leases of the computers of a hash's results. They lie beside the hash, on every backend alike.
--@include clock
--@include layout
--@include values

--   leases: a hash: `=field` -> `deadline taken nonce` of a lease (taken in us), `-nonce` -> until
--           when that nonce, which was given back, is granted nothing (other times in ms)
-- The server's own time to live ends the key with its last lease.

local function refuse_leases(leases)
  return refuse_key('HLEN', leases, 'the leases of a volatile hash')
end

-- The microseconds since the epoch, so that no two leases are taken at the same time.
local function micros()
  local clock = redis.call('TIME')
  return clock[1] * 1000000 + clock[2] + 1000 * CLOCK_SHIFT_MS
end

-- How far a clock that is set right may go back, and leases are still out.
local SET_RIGHT_MS = 1000

-- The lease on a field that is out now: its nonce and when it was taken (us), or nil. One that was taken later
-- than now ends: the clock was set back, and its deadline may be far away.
local function lease_on(leases, field, at)
  local deadline, taken, nonce = string.match(redis.call('HGET', leases, '=' .. field) or '', '^(%d+) (%d+) (.+)$')
  if deadline and #deadline < 16 and tonumber(deadline) > at and tonumber(taken) / 1000 <= at + SET_RIGHT_MS then
    return nonce, tonumber(taken)
  end
end

-- Writes an entry that ends at a moment, and lets the key live as long.
local function lay(leases, entry, text, ms)
  redis.call('HSET', leases, entry, text)
  if redis.call('PTTL', leases) < ms then
    redis.call('PEXPIRE', leases, ms)
  end
end

-- Removes some of the entries that have ended, chosen at random: each new entry removes more than one of
-- them on average as long as a quarter of all has ended.
local function prune(leases, at)
  local some = redis.call('HRANDFIELD', leases, -4, 'WITHVALUES') or {}
  for i = 1, #some, 2 do
    local deadline = string.match(some[i + 1], '^%d+')
    if not deadline or tonumber(deadline) <= at then
      redis.call('HDEL', leases, some[i])
    end
  end
end

-- Lets no computer of these fields store its result.
local function void(leases, fields)
  for _, field in ipairs(fields) do
    redis.call('HDEL', leases, '=' .. field)
  end
end

-- Refuses another layout. For commands of the server's own: scripts on deadlines check more.
local function refuse_layout(mark, expected)
  return refuse_mark(mark, redis.pcall('GET', mark), expected, 'a layout mark')
end
