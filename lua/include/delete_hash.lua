-- delete_hash(): DEL and UNLINK of a volatile hash, with its deadlines and its entry in the due index.
--@include volatile_write
--@include volatile

-- Returns 1 if a field was live, else 0; or an error reply.
local function delete_hash(command)
  local problem = refuse()
  if problem then
    return problem
  end
  local live = has_live() and 1 or 0
  redis.call(command, hash, deadlines)
  redis.call('ZREM', due, hash)
  return live
end
