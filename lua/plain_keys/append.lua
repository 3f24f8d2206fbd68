-- Appends entries, whose ids the caller chose, to a stream that expires.
--   KEYS[1] the stream
--   ARGV[1] the milliseconds that it lives
--   ARGV[2] about how many entries it keeps, '' for all
--   ARGV[3..] for each entry its id, how many fields and values it has, and these
-- Returns how many entries were appended, or the server's error for the first that it refused.
-- A refused id may be that of another program's stream, which must not get our deadline: so it is
-- set once an entry is there. It is set at once, so that no error behind it leaves it out.
local count, i = 0, 3
while i <= #ARGV do
  local last = i + 1 + tonumber(ARGV[i + 1])
  local reply
  if ARGV[2] == '' then
    reply = redis.pcall('XADD', KEYS[1], ARGV[i], unpack(ARGV, i + 2, last))
  else
    reply = redis.pcall('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], ARGV[i], unpack(ARGV, i + 2, last))
  end
  if type(reply) == 'table' and reply.err then
    return reply
  end
  if count == 0 then
    redis.call('PEXPIRE', KEYS[1], ARGV[1])
  end
  count = count + 1
  i = last + 1
end
return count
