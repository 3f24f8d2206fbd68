-- Begins to move the members of an ick shard: sets them aside, once for each change of the layout. From then
-- on only callers who know the new layout add here. Reserved members are also set aside.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] held
--   KEYS[5] attempts
--   KEYS[6] lease
--   KEYS[7] mark
--   KEYS[8] dead
--   KEYS[9] moving
--   KEYS[10] moving dead
--   KEYS[11] begun
--   KEYS[12] moving attempts
--   KEYS[13] waiting
--   KEYS[14] terms
--   KEYS[15] moving waiting
--   KEYS[16] moving terms
--   ARGV[1] the caller's mark
--   ARGV[2] the token of its lease
--   ARGV[3] the layout's generation
-- Returns how many members are to be moved; -1 if it is to be called again, because more was reserved than
-- one script sets aside; nil, with nothing changed, if the lease is not held any more or the caller's layout
-- is out of date.
--@include reservation
--@include shard
--@include waiting
--@include layout
local version, pset, cset, held, attempts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local problem, exists = refuse(version, pset, cset, false)
local wrong, lease = held_lease(KEYS[6], ARGV[2])
local unmarked, state = mark_state(KEYS[7], ARGV[1])
local current = problem or wrong or unmarked or current_token(held, attempts)
if type(current) == 'table' then
  return current
end
if state == 'newer' or not lease then
  return false
end
local moving = KEYS[9]
problem = refuse_key('HLEN', KEYS[8], 'the dead members of an Ick')
  or refuse_key('HLEN', KEYS[10], 'the dead members of an Ick')
  or refuse_key('ZCARD', moving, 'members that are being moved')
  or refuse_key('STRLEN', KEYS[11], 'the generation of a resize')
  or refuse_key('HLEN', KEYS[12], 'the attempts of an Ick')
  or refuse_key('ZCARD', KEYS[13], 'the waiting members of an Ick')
  or refuse_key('HLEN', KEYS[14], 'the terms of an Ick\'s waiting members')
  or refuse_key('ZCARD', KEYS[15], 'waiting members that are being moved')
  or refuse_key('HLEN', KEYS[16], 'the terms of members that are being moved')
if problem then
  return problem
end
if redis.call('GET', KEYS[11]) ~= ARGV[3] then
  local reply = redis.pcall('SET', KEYS[7], ARGV[1])
  if reply.err then
    return reply
  end
  if redis.call('EXISTS', moving) == 1 then
    -- Left by a resize whose layout was lost, or added since the call before this one.
    fold(pset, moving, PIECE)
  elseif redis.call('EXISTS', pset) == 1 then
    redis.call('RENAME', pset, moving)
  end
  if redis.call('EXISTS', KEYS[10]) == 0 and redis.call('EXISTS', KEYS[8]) == 1 then
    redis.call('RENAME', KEYS[8], KEYS[10])
  end
  if redis.call('EXISTS', KEYS[12]) == 0 and redis.call('EXISTS', attempts) == 1 then
    redis.call('RENAME', attempts, KEYS[12])
  end
  fold(cset, moving, PIECE)
  set_waiting_aside(KEYS[13], KEYS[14], KEYS[15], KEYS[16], PIECE)
  if exists then
    -- A consumer that reserved here before has nothing to acknowledge any more.
    hold_list(held, current, {})
  end
  if redis.call('EXISTS', pset, cset, KEYS[13]) > 0 then
    return -1
  end
  redis.call('SET', KEYS[11], ARGV[3])
end
return redis.call('ZCARD', moving) + redis.call('HLEN', KEYS[10]) + redis.call('ZCARD', KEYS[15])
