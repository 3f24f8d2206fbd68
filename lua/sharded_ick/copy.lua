-- Copies members into the ick shard where they belong from now on; doing it twice changes nothing.
-- KEYS: version, producer set, consumer set, mark, attempts, dead. ARGV: the caller's mark, how many
-- members, member, score, attempts ('' for none), ..., dead member, history, ...
-- Returns 1; nil, with nothing changed, if the caller's layout is out of date.
--@include shard
--@include ick
--@include layout
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
  local added = add_pairs(list)
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
  problem = refuse(true)
  if problem then
    return problem
  end
end
for i = last + 1, #ARGV, 2 do
  redis.call('HSETNX', KEYS[6], ARGV[i], ARGV[i + 1])
end
return 1
