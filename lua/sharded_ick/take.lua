-- Takes the lease of an ick shard if nobody holds it, or, if that is asked for, a consumer of this name.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] lease
--   KEYS[5] mark
--   ARGV[1] the caller's mark
--   ARGV[2] the consumer
--   ARGV[3] time to live in ms
--   ARGV[4] 1 to take it over from a holder of the same name, or 0
--   ARGV[5] the nonce that the caller has chosen, hexadecimal digits
-- Returns the new token; '' if somebody holds it, and then only an older mark becomes the caller's; nil, with
-- nothing changed, if the caller's layout is out of date. Asked again with the same nonce, the token that was
-- granted to it.
--@include shard
--@include clock
local version, pset, cset = KEYS[1], KEYS[2], KEYS[3]
local problem = refuse(version, pset, cset, false)
local wrong, lease = read_lease(KEYS[4])
local unmarked, state = mark_state(KEYS[5], ARGV[1])
if problem or wrong or unmarked then
  return problem or wrong or unmarked
end
local is_mine = is_granted(KEYS[4], lease, ARGV[5])
if state == 'newer' then
  if is_mine then
    redis.call('HDEL', KEYS[4], 'deadline')
  end
  return false
end
if is_mine then
  return lease.token
end
if withdrawn_nonces(KEYS[4])[ARGV[5]] then
  return ''
end
if lease.left > 0 and not (ARGV[4] == '1' and lease.consumer == ARGV[2]) then
  if state == 'older' then
    -- From now on its holder is given no more members, so that a resize comes to its end.
    redis.pcall('SET', KEYS[5], ARGV[1])
  end
  return ''
end
extend(KEYS[4], ARGV[3])
if state == 'older' then
  redis.call('SET', KEYS[5], ARGV[1])
end
local token = next_token(lease.token, server_time())
local taken = string.format('%.0f', now())
redis.call('HSET', KEYS[4], 'token', token, 'consumer', ARGV[2], 'taken', taken, 'nonce', token .. ' ' .. ARGV[5])
return token
