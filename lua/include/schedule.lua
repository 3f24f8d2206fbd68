-- schedule(): an entry in the due index.
--@include guard

-- Makes the due index find this hash at that moment or before. The first write of a script that sets
-- deadlines, so that a full server refuses it before anything is changed. Returns an error or nil.
local function schedule(at)
  local reply = redis.pcall('ZADD', due, 'LT', string.format('%.0f', at), hash)
  if type(reply) == 'table' then
    return string.find(reply.err, 'WRONGTYPE', 1, true) and foreign_due() or reply
  end
end
