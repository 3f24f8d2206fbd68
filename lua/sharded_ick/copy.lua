-- Copies members into the ick shard where they belong from now on; doing it twice changes nothing.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] mark
--   KEYS[5] attempts
--   KEYS[6] dead
--   KEYS[7] waiting
--   KEYS[8] terms
--   ARGV[1] the caller's mark
--   ARGV[2] how many members
--   ARGV[3] how many dead members
--   ARGV[4..] member, score and attempts ('' for none) of each; then dead members, each with its history; then
--     members that wait, each with the time when it is ripe, in ms, and its terms
-- Returns 1; nil, with nothing changed, if the caller's layout is out of date.
--@include shard
--@include ick
--@include waiting
--@include layout
local version, pset, cset = KEYS[1], KEYS[2], KEYS[3]
local unmarked, state = mark_state(KEYS[4], ARGV[1])
if unmarked or state == 'newer' then
  return unmarked or false
end
local problem = refuse_key('HLEN', KEYS[5], 'the attempts of an Ick')
  or refuse_key('HLEN', KEYS[6], 'the dead members of an Ick')
  or refuse_key('ZCARD', KEYS[7], 'the waiting members of an Ick')
  or refuse_key('HLEN', KEYS[8], 'the terms of an Ick\'s waiting members')
if problem then
  return problem
end
local reply = redis.pcall('SET', KEYS[4], ARGV[1])
if reply.err then
  return reply
end
local list, last = {}, 3 + 3 * ARGV[2]
local last_dead = last + 2 * ARGV[3]
for i = 4, last, 3 do
  list[#list + 1] = ARGV[i + 1]
  list[#list + 1] = ARGV[i]
end
if #list > 0 then
  local added = add_pairs(version, pset, cset, list)
  if added.err then
    return added
  end
end
-- The attempts of a member begin with their number.
local function number_of(text)
  return tonumber(string.match(text or '', '^%d+') or 0)
end
for i = 4, last, 3 do
  if number_of(ARGV[i + 2]) > number_of(redis.call('HGET', KEYS[5], ARGV[i]) or '') then
    redis.call('HSET', KEYS[5], ARGV[i], ARGV[i + 2])
  end
end
if #ARGV > last then
  problem = refuse(version, pset, cset, true)
  if problem then
    return problem
  end
end
for i = last + 1, last_dead, 2 do
  redis.call('HSETNX', KEYS[6], ARGV[i], ARGV[i + 1])
end
wait_on(KEYS[7], KEYS[8], { unpack(ARGV, last_dead + 1) })
return 1
