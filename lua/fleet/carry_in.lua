-- Writes a key that has come from another node of a fleet, once and never again.
--   KEYS[1] key
--   KEYS[2] the set of carried keys
--   KEYS[3] mark
--   KEYS[4] due index
--   KEYS[5] deadlines (only of a volatile hash)
--   ARGV[1] mark ('' for a native namespace)
--   ARGV[2..] the reply of carry_out: dump, end of the key, score in the due index, dump of its deadlines,
--     token
-- Returns 1; 0 if the key has been carried before or is here already, and nothing is changed then. Before
-- means: with this token.
--@include layout
local key, carried, mark, due, deadlines = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local problem = refuse_key('SCARD', carried, 'the keys that were carried')
if problem then
  return problem
end
local member = ARGV[6] .. ' ' .. key
if redis.call('SISMEMBER', carried, member) == 1 then
  return 0
end
local found = ARGV[1] == '' or redis.pcall('GET', mark)
if ARGV[1] ~= '' then
  problem = refuse_mark(mark, found, ARGV[1], 'a layout mark') or refuse_key('ZCARD', due, 'a due index')
  if problem then
    return problem
  end
end
if redis.call('EXISTS', key) == 1 then
  return redis.call('SADD', carried, member) * 0
end
-- The first write: a full server, or one that is too old for the dump, refuses it before all else.
local reply = redis.pcall('RESTORE', key, 0, ARGV[2])
if reply.err then
  return reply
end
if not found then
  redis.call('SET', mark, first_mark(ARGV[1]))
end
if ARGV[5] ~= '' then
  redis.call('RESTORE', deadlines, 0, ARGV[5], 'REPLACE')
elseif deadlines then
  -- Of an earlier hash of this name, which somebody has deleted: the new one must not inherit them.
  redis.call('UNLINK', deadlines)
end
if ARGV[4] ~= '' then
  redis.call('ZADD', due, ARGV[4], key)
end
if ARGV[3] ~= '' then
  redis.call('PEXPIREAT', key, ARGV[3])
end
return redis.call('SADD', carried, member)
