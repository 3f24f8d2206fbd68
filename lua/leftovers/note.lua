--@library
-- note(): a line in the audit stream of the job that has called the script.

-- KEYS: the last one is the audit stream. ARGV: the number of the script's own arguments, these, then the
-- stream's most entries, the ms after which it ends, and the fields of the line. The last of the own arguments
-- is the room: the most parts that the slice may still remove, 1 or more.
local own = tonumber(ARGV[1])
local room = tonumber(ARGV[own + 1])

-- Notes the removal of a number of parts, if there is any. Behind a delete a full server allows it.
local function note(parts)
  if parts == 0 then
    return
  end
  local audit = KEYS[#KEYS]
  local line = { unpack(ARGV, own + 4) }
  line[#line + 1], line[#line + 2] = 'parts', parts
  redis.call('XADD', audit, 'MAXLEN', '~', ARGV[own + 2], '*', unpack(line))
  redis.call('PEXPIRE', audit, ARGV[own + 3])
end
