--@library
-- The functions of RENAME, RENAMENX and COPY.
--@include hash
--@include layout

-- The part that RENAME, RENAMENX and COPY of a volatile hash share: the second hash.
--   to_hash, to_deadlines, to_due, to_mark: hash, deadlines, due and mark of the destination

-- Checks the destination as refuse() checks the source, and that too, before the mark of either is
-- written; any type may stand at the destination, since it is overwritten. Returns an error reply or nil.
local function refuse_either(hash, deadlines, due, mark, to_deadlines, to_due, to_mark, expected)
  local found = redis.pcall('GET', to_mark)
  local problem = refuse_mark(to_mark, found, expected, 'a layout mark')
    or refuse_key('ZCARD', to_deadlines, 'the deadlines of a volatile hash')
    or refuse_key('ZCARD', to_due, 'a due index')
    or refuse(hash, deadlines, due, mark, expected)
  if not problem and not found then
    local reply = redis.pcall('SET', to_mark, first_mark(expected))
    return reply.err and reply
  end
  return problem
end

-- Whether a reader finds something at the destination.
local function destination_exists(to_hash, to_deadlines)
  if redis.call('TYPE', to_hash).ok ~= 'hash' then
    return redis.call('EXISTS', to_hash) == 1
  end
  local past = redis.call('ZRANGEBYSCORE', to_deadlines, '-inf', string.format('%.0f', now()))
  local size = redis.call('HLEN', to_hash)
  for _, field in ipairs(past) do
    size = size - redis.call('HEXISTS', to_hash, field)
  end
  return size > 0
end

-- Gives the destination the source's entry in the due index. The first write, for a full server's
-- sake. Returns an error reply or nil.
local function schedule_destination(hash, due, to_hash, to_due)
  local at = redis.call('ZSCORE', due, hash)
  if at then
    local reply = redis.pcall('ZADD', to_due, at, to_hash)
    if type(reply) == 'table' then
      return reply
    end
  end
end

-- Refuses what refuse_either() refuses, and a source without a live field.
local function refuse_rename(hash, deadlines, due, mark, to_deadlines, to_due, to_mark, expected)
  local problem = refuse_either(hash, deadlines, due, mark, to_deadlines, to_due, to_mark, expected)
  if not problem and not has_live(hash, deadlines) then
    return redis.error_reply('ERR no such key')
  end
  return problem
end

local function rename_all(hash, deadlines, due, to_hash, to_deadlines, to_due)
  local problem = schedule_destination(hash, due, to_hash, to_due)
  if problem then
    return problem
  end
  redis.call('RENAME', hash, to_hash)
  if redis.call('EXISTS', deadlines) == 1 then
    redis.call('RENAME', deadlines, to_deadlines)
  else
    redis.call('UNLINK', to_deadlines)
    redis.call('ZREM', to_due, to_hash)
  end
  redis.call('ZREM', due, hash)
end
