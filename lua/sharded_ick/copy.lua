-- Copies members into the ick shard where they belong from now on; doing it twice changes nothing.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] mark
--   KEYS[5] attempts
--   KEYS[6] dead
--   ARGV[1] the caller's mark
--   ARGV[2] how many members
--   ARGV[3..] member, score and attempts ('' for none) of each; then dead members, each with its history
-- Returns 1; nil, with nothing changed, if the caller's layout is out of date.
--@include shard
--@include ick
--@include layout
local version, pset, cset = KEYS[1], KEYS[2], KEYS[3]
local unmarked, state = mark_state(KEYS[4], ARGV[1])
if unmarked or state == 'newer' then
  return unmarked or false
end
local problem = refuse_key('HLEN', KEYS[5], 'the attempts of an Ick')
  or refuse_key('HLEN', KEYS[6], 'the dead members of an Ick')
if problem then
  return problem
end
local reply = redis.pcall('SET', KEYS[4], ARGV[1])
if reply.err then
  return reply
end
local list, last = {}, 2 + 3 * ARGV[2]
for i = 3, last, 3 do
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
for i = 3, last, 3 do
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
for i = last + 1, #ARGV, 2 do
  redis.call('HSETNX', KEYS[6], ARGV[i], ARGV[i + 1])
end
return 1
