-- Does what a reaper has decided on after a look at an Ick, to whatever is as it was then.
-- KEYS: version, producer set, consumer set, held, attempts, seen, dead. ARGV: the token of then,
-- and for each step four: what to do, member, score, value:
--   return: back to the producer set, the lower score wins; value: the new attempts
--   bury: to the dead; value: its history
--   forget_attempts, forget_seen: an entry whose member has gone
--   trim: what held lists, since nothing is reserved
--   note: value: since when a member without a token is seen, and its score
-- Returns how many steps were done, notes aside; -1 if somebody has reserved since.
-- Each return begins by a ZREM, which a server lets pass that is out of memory; what follows a write
-- in a script passes too.
--@include ick_sidecars
--@include ick_listed
--@include ick_token
local held, attempts, seen, dead = KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local problem = refuse_all()
if problem then
  return problem
end
local text = redis.call('GET', held) or ''
if string.sub(text, 1, 16) ~= ARGV[1] then
  return -1
end

local function is_reserved(member, score)
  return redis.call('ZSCORE', cset, member) == score
end

local gone, moved, done = {}, false, 0
local steps = {
  ['return'] = function(member, score, value)
    if not is_reserved(member, score) then
      return 0
    end
    redis.call('ZREM', cset, member)
    redis.call('ZADD', pset, 'LT', score, member)
    redis.call('HSET', attempts, member, value)
    redis.call('HDEL', seen, member)
    gone[member], moved = true, true
    return 1
  end,
  bury = function(member, score, value)
    if not is_reserved(member, score) then
      return 0
    end
    redis.call('ZREM', cset, member)
    redis.call('HSET', dead, member, value)
    redis.call('HDEL', attempts, member)
    redis.call('HDEL', seen, member)
    gone[member], moved = true, true
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
    if redis.call('EXISTS', cset) == 1 or #text <= HELD_HEAD then
      return 0
    end
    redis.call('DEL', held)
    redis.call('SET', held, string.sub(text, 1, HELD_HEAD))
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

if moved then
  -- Whoever held them must not commit them any more.
  local token = next_token(ARGV[1], redis.call('TIME'))
  local parts = { token, text == '' and ' 0000000000000' or string.sub(text, 17, HELD_HEAD) }
  local rest = each_listed(text, function(member, first, last)
    if not gone[member] then
      parts[#parts + 1] = string.sub(text, first, last)
    end
  end)
  parts[#parts + 1] = string.sub(text, rest)
  redis.call('SET', held, table.concat(parts))
end
return done
