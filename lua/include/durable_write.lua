-- What scripts that change durable keys share.
--   mark: the layout mark of the key's index shard, a string; ARGV[1] the mark that the caller was
--   written for
--@include durable
--@include refuse_mark

-- Refuses a foreign layout and wrong types before anything is written. Returns an error reply or nil,
-- the type of what stands at the key ('none' or 'string'), its deadline or nil, and the mark found.
local function refuse(key, due, mark, at)
  local found = redis.pcall('GET', mark)
  local problem = refuse_mark(mark, found, ARGV[1], 'a layout mark')
  if problem then
    return problem
  end
  local kind, deadline
  kind, deadline, problem = look(key, due, at)
  if problem then
    return problem
  end
  if kind ~= 'none' and kind ~= 'string' then
    return redis.error_reply(
      'WRONGTYPE Operation against a key holding the wrong kind of value'
    )
  end
  return nil, kind, deadline, found
end

-- Writes a key's deadline into the due index. The first write of a script that sets one, so that a
-- full server refuses it before anything is changed. Returns an error reply or nil.
local function schedule(key, due, mark, found, deadline)
  if not found then
    local reply = redis.pcall('SET', mark, ARGV[1])
    if reply.err then
      return reply
    end
  end
  local reply = redis.pcall('ZADD', due, string.format('%.0f', deadline), key)
  return type(reply) == 'table' and reply or nil
end

local function remove(key, due)
  redis.call('DEL', key)
  redis.call('ZREM', due, key)
end
