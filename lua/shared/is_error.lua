--@library
-- is_error(): whether redis.pcall() has returned an error reply.
local function is_error(reply)
  return type(reply) == 'table' and reply.err ~= nil
end
