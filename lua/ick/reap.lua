-- Does what a reaper has decided on after a look at an Ick, to whatever is as it was then.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] held
--   KEYS[5] attempts
--   KEYS[6] seen
--   KEYS[7] dead
--   KEYS[8] waiting
--   KEYS[9] terms
--   ARGV[1] the token of then
--   ARGV[2..] for each step four: the word for it, member, score, value
--   The steps:
--     return: back to the producer set, the lower score wins; value: the new attempts
--     bury: to the dead; value: its history
--     forget_attempts, forget_seen: an entry whose member has gone
--     trim: the list in held, since nothing is reserved
--     note: value: since when a member without a token is seen, and its score
-- Returns how many steps were done, notes aside; -1 if somebody has reserved since. Each return
-- begins by a ZREM, which a server that is out of memory allows; after that write the server allows
-- the script's other writes.
--@include ick
--@include listed
--@include reservation
local version, pset, cset, held, attempts, seen, dead = unpack(KEYS)
local problem = refuse_all(unpack(KEYS))
if problem then
  return problem
end
local head, token_of_now = head_of(redis.call('GETRANGE', held, 0, MOST_HEAD - 1))
if token_of_now ~= ARGV[1] then
  return -1
end

local function is_reserved(member, score)
  return redis.call('ZSCORE', cset, member) == score
end

local find, mask = listed(held)
local is_moved, done = false, 0
-- Takes a member out of what is reserved and listed.
local function take(member, score)
  redis.call('ZREM', cset, member)
  local entry = find(member, score)
  if entry then
    mask(entry)
  end
  is_moved = true
end

-- Leaves nothing listed.
local function cut()
  local head = head_of(redis.call('GETRANGE', held, 0, MOST_HEAD - 1))
  redis.call('DEL', held)
  redis.call('SET', held, head)
end

local steps = {
  ['return'] = function(member, score, value)
    if not is_reserved(member, score) then
      return 0
    end
    take(member, score)
    redis.call('ZADD', pset, 'LT', score, member)
    redis.call('HSET', attempts, member, value)
    redis.call('HDEL', seen, member)
    return 1
  end,
  bury = function(member, score, value)
    if not is_reserved(member, score) then
      return 0
    end
    take(member, score)
    redis.call('HSET', dead, member, value)
    redis.call('HDEL', attempts, member)
    redis.call('HDEL', seen, member)
    return 1
  end,
  forget_attempts = function(member)
    if redis.call('ZSCORE', cset, member) or redis.call('ZSCORE', pset, member) then
      return 0
    end
    return redis.call('HDEL', attempts, member)
  end,
  forget_seen = function(member)
    if redis.call('ZSCORE', cset, member) then
      return 0
    end
    return redis.call('HDEL', seen, member)
  end,
  trim = function()
    if redis.call('EXISTS', cset) == 1 or redis.call('STRLEN', held) <= #head then
      return 0
    end
    cut()
    return 1
  end,
  note = function(member, score, value)
    if is_reserved(member, score) then
      -- Where memory is short, a note is not worth any.
      redis.pcall('HSET', seen, member, value)
    end
    return 0
  end,
}
for i = 2, #ARGV, 4 do
  done = done + steps[ARGV[i]](ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
end

if is_moved then
  -- The consumer that held them must not acknowledge them any more.
  local token = next_token(ARGV[1], server_time())
  if ARGV[1] == '' then
    redis.call('SET', held, token .. ' 0000000000000')
  elseif #token == #ARGV[1] then
    redis.call('SETRANGE', held, 0, token)
  else
    -- Once, in the year 2286.
    redis.call('SET', held, token .. redis.call('GETRANGE', held, #ARGV[1], -1))
  end
  if redis.call('EXISTS', cset) == 0 then
    cut()
  end
end
return done
