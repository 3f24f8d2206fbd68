-- Puts the next forms of blocks of a log in the place of those that were read, all or none, where a server
-- that is full refuses a MULTI.
--   KEYS[1] meta
--   KEYS[2] full
--   KEYS[3] raw
--   KEYS[4..] the blocks
--   ARGV[1] entries a block
--   ARGV[2] epoch
--   ARGV[3] now in ms
--   ARGV[4..] of each block five: its number; `list` or `string`, as it was read, or `none` if it is lost;
--     how many entries the list has, or bytes the string; its next form, or '' to keep this one; 1 if it is
--     finished, 0 if it is now raw
-- Returns 1; or 0, having changed nothing, if anything is not as it was read.
--@include log
local meta, full, raw = KEYS[1], KEYS[2], KEYS[3]
local facts = redis.pcall('HMGET', meta, 'mark', 'block', 'epoch')
local problem = refuse(meta, facts)
if problem then
  return problem
end
if facts[2] ~= ARGV[1] or facts[3] ~= ARGV[2] then
  return 0
end
for _, key in ipairs({ KEYS[2], KEYS[3] }) do
  problem = problem or refuse_key('ZCARD', key, 'blocks of a log')
end
if problem then
  return problem
end
local function argument(each, place)
  return ARGV[3 + 5 * (each - 4) + place]
end
-- A full list and a sealed block never change: they are replaced or go, and then they are in the set no more.
for each = 4, #KEYS do
  local kind, size = argument(each, 2), tonumber(argument(each, 3))
  if redis.call('TYPE', KEYS[each]).ok ~= kind then
    return 0
  end
  if kind ~= 'none' then
    local is_list = kind == 'list'
    local found = redis.call(is_list and 'LLEN' or 'STRLEN', KEYS[each])
    if found ~= size or not redis.call('ZSCORE', KEYS[is_list and 2 or 3], argument(each, 1)) then
      return 0
    end
  end
end
for each = 4, #KEYS do
  local number, next_form = argument(each, 1), argument(each, 4)
  -- First what a full server does not refuse; what the script writes behind that, it does not refuse either.
  redis.call('ZREM', full, number)
  redis.call('ZREM', raw, number)
  if next_form ~= '' then
    -- In one command: there is no moment at which the block has neither form.
    redis.call('SET', KEYS[each], next_form)
  end
  if argument(each, 5) == '0' then
    redis.call('ZADD', raw, ARGV[3], number)
  end
end
return 1
