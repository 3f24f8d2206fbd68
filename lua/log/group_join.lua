-- Makes a group of a log, and the log too where there is none.
--   KEYS[1] meta
--   KEYS[2] state
--   KEYS[3] line
--   KEYS[4] turns
--   KEYS[5] granted
--   KEYS[6] pending
--   KEYS[7] attempts
--   KEYS[8] dead
--   KEYS[9] revived
--   KEYS[10] waiting
--   KEYS[11] news
--   ARGV[1] group
--   ARGV[2] kind
--   ARGV[3] where it starts (first, last or an offset, from the end if negative)
--   ARGV[4] entries a block of a new log
-- Returns { 0 }, or { -2, kind } if there is one of another kind.
--@include clock
--@include group
local meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news = unpack(KEYS)
local facts = redis.pcall('HMGET', meta, 'mark', 'next', 'first', 'epoch', 'group:' .. ARGV[1], 'joined')
local problem = refuse(meta, facts) or refuse_all(state, line, turns, granted, pending, attempts, dead, revived, waiting)
if problem then
  return problem
end
local own = redis.call('HMGET', state, 'kind', 'epoch')
if facts[1] and facts[5] and own[1] and own[2] == facts[4] then
  return own[1] == ARGV[2] and { 0 } or { -2, own[1] }
end
local tail, epoch = end_of(meta, facts[2], facts[1]), epoch_of(meta, facts[4], facts[1])
local first = first_of(meta, facts[3], tail, facts[1])
stored(meta, 'joined', facts[6], 0, MOST_STORED * 100, 0)
epoch_of(state, own[2], own[1])
problem = facts[1] and refuse_end(meta, news, tail) or unbelieved
if problem then
  return problem
end
if not facts[1] then
  epoch = new_epoch()
  -- A full server refuses the first write of a script or none of them.
  local made = make_log(meta, ARGV[4], epoch)
  if is_error(made) then
    return made
  end
end
if not facts[5] then
  local noted = redis.pcall('HSET', meta, 'group:' .. ARGV[1], '1')
  if is_error(noted) then
    return noted
  end
  if (facts[6] or '0') == '0' then
    -- No other log has this number: who knows the groups of one that was deleted does not take them for this one's.
    redis.call('HSET', meta, 'joined', epoch)
  else
    redis.call('HINCRBY', meta, 'joined', '1')
  end
end
redis.call('DEL', state, turns, granted, pending, attempts, revived)
redis.call('HSET', state, 'mark', LOG_VERSION, 'kind', ARGV[2], 'epoch', epoch, 'offset',
  whole(offset_of(ARGV[3], tail, first)))
wake(state, line, turns, granted, now(), tail, first, 0)
return { 0 }
